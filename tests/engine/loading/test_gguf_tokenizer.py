"""Tokenizers of GGUF files: each family cuts text as its own tokenizer does, and knows its ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from daemon.engine.loading.gguf_tokenizer import PRE_TOKENIZERS, GgufVocabulary, write_tokenizer
from daemon.models.gguf_header import GgufHeader, read_gguf_header
from daemon.models.shape import ModelError
from tests.engine.loading.gguf_files import write
from tests.models.hard_strings import hard_strings
from tests.models.vocabularies import (
    FAMILIES,
    ByRanks,
    ByScores,
    gguf_fields,
    letter_merges,
    sentence_pieces,
)
from tests.soak import tries

CHAT = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "a", "b", "ab"]


def header(**fields: Any) -> GgufHeader:
    """Of a small byte-level vocabulary, with such fields of its tokenizer."""
    said = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": CHAT,
        "token_type": [3] * 5 + [1] * 3,
        "merges": ["a b"],
        "bos_token_id": 0,
        "eos_token_id": 1,
        **fields,
    }
    begin = "tokenizer.ggml."
    kept = {begin + name: value for name, value in said.items() if value is not None}
    return GgufHeader({"general.architecture": "llama", **kept}, ())


def made(folder: Path, told: GgufHeader) -> Tokenizer:
    write_tokenizer(folder / "tiny.gguf", folder, told)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("pre", FAMILIES)
def test_a_family_reads_hard_strings_as_its_own_tokenizer_does(pre: str, tmp_path: Path) -> None:
    ours, theirs = made(tmp_path, gguf_fields(pre)), FAMILIES[pre]()
    special = [token.content for token in ours.get_added_tokens_decoder().values()]
    texts = hard_strings(tries(300, 2000), special)
    for text, mine, right in zip(
        texts,
        ours.encode_batch(texts, add_special_tokens=True),
        theirs.encode_batch(texts, add_special_tokens=True),
        strict=True,
    ):
        assert mine.tokens == right.tokens, repr(text)
        assert mine.ids == right.ids
        assert ours.decode(mine.ids) == theirs.decode(right.ids), repr(text)


@pytest.mark.parametrize(
    ("fields", "spaced", "begins"),
    [
        ({}, True, True),
        ({"add_space_prefix": False}, False, True),
        ({"add_bos_token": False}, True, False),
        ({"add_space_prefix": False, "add_bos_token": False}, False, False),
    ],
)
def test_pieces_of_sentences_are_joined_by_their_scores(
    fields: dict[str, Any], spaced: bool, begins: bool, tmp_path: Path
) -> None:
    tokens, scores, kinds = sentence_pieces()
    said = {"model": "llama", "pre": "default", "tokens": tokens, "scores": scores}
    said |= {"token_type": kinds, "bos_token_id": 1, "eos_token_id": 2, **fields}
    put = {f"tokenizer.ggml.{name}": value for name, value in said.items()}
    path = write(tmp_path / "tiny.gguf", lambda _: "Q4_0", put=put, drop=["tokenizer.ggml.merges"])
    write_tokenizer(path, tmp_path, read_gguf_header(path))
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs = ByScores(spaced, begins)
    for text in hard_strings(tries(200, 2000), theirs.added):
        assert ours.encode(text).tokens == theirs.tokens(text), repr(text)
    assert ours.decode(ours.encode("an owl, 漢字").ids) == "an owl, 漢字"


def gemma_4(**fields: Any) -> GgufHeader:
    tokens, kinds, merges = letter_merges()
    said = {"model": "gemma4", "tokens": tokens, "token_type": kinds, "merges": merges}
    ids = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "padding_token_id": 0}
    own = {f"tokenizer.ggml.{name}": value for name, value in {**said, **ids, **fields}.items()}
    return GgufHeader({"general.architecture": "gemma4", **own}, ())


def test_letters_are_joined_line_by_line_by_the_ranks_of_merges(tmp_path: Path) -> None:
    ours, theirs = made(tmp_path, gemma_4(add_bos_token=False)), ByRanks()
    lines = ["\n", "\n\n", "a\n\n\nowl", "the\n the \n\n\n\n\nowl sees  it"]
    for text in [*lines, *hard_strings(tries(200, 2000), theirs.added)]:
        assert ours.encode(text).tokens == theirs.tokens(text), repr(text)
    assert ours.decode(ours.encode("an owl,\n\n 漢字").ids) == "an owl,\n\n 漢字"
    assert GgufVocabulary(gemma_4()).ends == [1, len(letter_merges()[0]) - 1]


def test_line_ends_that_no_merges_join_are_refused(tmp_path: Path) -> None:
    merges = [merge for merge in letter_merges()[2] if "\n" not in merge]
    with pytest.raises(ModelError, match=r"merges do not make the token '\\n\\n'"):
        made(tmp_path, gemma_4(merges=merges))


def test_every_pre_tokenizer_is_of_a_family_that_is_tried() -> None:
    tried = [PRE_TOKENIZERS[pre] for pre in FAMILIES]
    assert all(one in tried for one in PRE_TOKENIZERS.values())


@pytest.mark.parametrize(
    ("fields", "begins", "closes"),
    [
        ({"pre": "llama-bpe"}, True, False),
        ({"pre": "tekken"}, True, False),
        ({"pre": "falcon3"}, True, False),
        ({"pre": "llama-bpe", "add_bos_token": False}, False, False),
        ({"pre": "qwen2"}, False, False),
        ({"pre": "qwen2", "add_bos_token": True}, True, False),
        ({"pre": "smollm", "add_bos_token": True, "add_eos_token": True}, True, True),
        ({"pre": "llama-bpe", "bos_token_id": None}, False, False),
    ],
)
def test_bos_and_eos_are_where_llama_cpp_puts_them(
    fields: dict[str, Any], begins: bool, closes: bool, tmp_path: Path
) -> None:
    ids = made(tmp_path, header(**fields)).encode("ab").ids
    assert ids == [0] * begins + [7] + [1] * closes


@pytest.mark.parametrize(("pre", "ids"), [("llama-bpe", [7]), ("qwen2", [5, 6]), ("tekken", [7])])
def test_whole_words_are_not_merged_where_llama_cpp_ignores_merges(
    pre: str, ids: list[int], tmp_path: Path
) -> None:
    told = header(pre=pre, merges=[], add_bos_token=False)
    assert made(tmp_path, told).encode("ab").ids == ids


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({"eos_token_id": 4, "eot_token_id": 3}, [4, 3]),
        ({"eos_token_id": 4, "eom_token_id": 1}, [4, 1, 3]),
        ({"eos_token_id": 1}, [1, 3, 4]),
        ({"eos_token_id": None, "eot_token_id": 5}, [5, 3, 4]),
        ({"eos_token_id": 1, "fim_pad_token_id": 6}, [1, 6, 3, 4]),
        (
            {
                "tokens": ["<|return|>", "<|call|>", "<|end|>", "a"],
                "token_type": None,
                "bos_token_id": None,
                "eos_token_id": 0,
                "merges": [],
            },
            [0, 1],
        ),
        (
            {
                "tokens": ["<|end|>", "x", "a"],
                "token_type": None,
                "bos_token_id": None,
                "eos_token_id": 1,
                "merges": [],
            },
            [1, 0],
        ),
    ],
)
def test_every_end_of_a_turn_ends_an_answer(fields: dict[str, Any], ends: list[int]) -> None:
    assert GgufVocabulary(header(**fields)).ends == ends


def test_an_end_is_special_whatever_kind_a_file_gives_it(tmp_path: Path) -> None:
    """Else its text would be shown, and one in a prompt would be letters."""
    tokenizer = made(tmp_path, header(token_type=[1] * 8))
    assert tokenizer.encode("ab<|im_end|>").ids == [7, 3]
    assert tokenizer.decode([7, 3]) == "ab"


def test_special_tokens_of_any_letters_stay_whole(tmp_path: Path) -> None:
    """Those of DeepSeek are not in the letters of bytes."""
    tokens = ["<｜begin▁of▁sentence｜>", "<｜User｜>", "a"]
    told = header(tokens=tokens, token_type=[3, 3, 1], merges=[], bos_token_id=0, eos_token_id=0)
    assert made(tmp_path, told).encode("a<｜User｜>a").ids == [2, 1, 2]


@pytest.mark.parametrize("pre", [None, "default", "unheard-of"])
def test_a_pre_tokenizer_that_nobody_knows_is_refused(pre: str | None) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre .*how text is cut into words"):
        GgufVocabulary(header(pre=pre))


def test_merges_of_tokens_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="its vocabulary makes no tokenizer: "):
        made(tmp_path, header(merges=["a z"]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"merges": None}, "merges is missing"),
        ({"tokens": None}, "tokens is missing"),
        ({"model": None}, "model is missing"),
        ({"tokens": [*CHAT[:-1], "a"]}, "tokens has 'a' twice"),
    ],
)
def test_a_vocabulary_that_is_not_whole_is_refused_by_the_field(
    fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=rf"tokenizer\.ggml\.{said}"):
        made(tmp_path, header(**fields))


def test_the_folder_says_the_ends_and_the_template(tmp_path: Path) -> None:
    told = header()
    told.fields["tokenizer.chat_template"] = "{{ messages }}"
    made(tmp_path, told)
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages }}"
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")


def test_a_word_that_fills_or_is_unknown_stays_a_word_of_any_text(tmp_path: Path) -> None:
    """Some files name a word as the token that fills; BOS is one whatever its kind."""
    told = header(token_type=[1] * 8, padding_token_id=5, unknown_token_id=5, bos_token_id=0)
    tokenizer = made(tmp_path, told)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["bos_token"] == "<s>" and not {"pad_token", "unk_token"} & set(config)
    found = [one.content for one in tokenizer.get_added_tokens_decoder().values()]
    assert "<s>" in found and header().fields["tokenizer.ggml.tokens"][5] not in found
