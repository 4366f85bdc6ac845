"""Tokens that stand in the files beside tokenizer.json, as transformers adds them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from daemon.api.text.text import Text
from daemon.models.added_tokens import named_tokens
from daemon.models.grammar import Compiler
from daemon.models.shape import ModelError
from daemon.models.vocabulary import end_token_ids, read_tokenizer, tokenizer_json
from tests.models.hard_strings import hard_strings
from tests.models.vocabularies import FAMILIES, SPECIAL, USER, VOCAB_SIZE
from tests.soak import tries

FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
TEXTS = ["<s>", "<|tool|>", "<|more|>", "[PAD]", "<think>", "<plain>", "owl", "<new>", "<img>"]


def folder_of(folder: Path, **files: Any) -> Path:
    """A folder whose tokenizer has `VOCAB_SIZE` tokens, and such JSON files beside it."""
    folder.mkdir(exist_ok=True)
    made: Tokenizer = FAMILIES["gpt-2"]()
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for name, value in {"tokenizer_config": FAST, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def token(content: str, **flags: bool) -> dict[str, Any]:
    """A token as transformers writes it."""
    usual = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, **usual, "special": True, **flags}


def config(**fields: Any) -> dict[str, Any]:
    return {"tokenizer_config": FAST | fields}


def behind(*tokens: dict[str, Any]) -> dict[str, Any]:
    """Tokens with the ids behind the vocabulary's."""
    return {str(VOCAB_SIZE + number): one for number, one in enumerate(tokens)}


FILES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "by id": config(added_tokens_decoder=behind(token("<|tool|>"), token("<|more|>"))),
    "by id, no special ones": config(
        added_tokens_decoder=behind(token("<plain>", special=False, normalized=True))
    ),
    "by id, that take spaces": config(
        added_tokens_decoder=behind(
            token("<|tool|>", lstrip=True), token("<|more|>", rstrip=True, single_word=True)
        )
    ),
    "by id, with other properties than tokenizer.json says": config(
        added_tokens_decoder={"3": token(SPECIAL[3], rstrip=True), "4": token(SPECIAL[4])}
    ),
    "a name": config(pad_token="[PAD]"),
    "names": config(pad_token="[PAD]", bos_token="<s>", unk_token="<new>", eos_token="<|im_end|>"),
    "a name of a token by id": config(
        added_tokens_decoder=behind(token("[PAD]", special=False)), pad_token="[PAD]"
    ),
    "a name of a word": config(pad_token="owl"),
    "a name that transformers does not know": config(tool_token="<|tool|>"),
    "a name with properties": config(pad_token={"__type": "AddedToken", **token("[PAD]")}),
    "further ones": config(extra_special_tokens=["<|tool|>", "<|more|>", "<s>"]),
    "further ones with names": config(extra_special_tokens={"image_token": "<img>"}),
    "further ones, as older files call them": config(additional_special_tokens=["<|more|>"]),
    "both": config(extra_special_tokens=["<|tool|>"], additional_special_tokens=["<|more|>"]),
    "all": config(
        added_tokens_decoder=behind(token("<|tool|>")),
        pad_token="[PAD]",
        img_token="<img>",
        extra_special_tokens=["<|more|>"],
    ),
    "an older list of ids": {"added_tokens": {"<|tool|>": VOCAB_SIZE, "<plain>": VOCAB_SIZE + 1}},
    "an older list with a name": {
        "added_tokens": {"[PAD]": VOCAB_SIZE, "<plain>": VOCAB_SIZE + 1},
        "special_tokens_map": {"pad_token": "[PAD]"},
    },
    "an older map": {
        "special_tokens_map": {
            "pad_token": token("[PAD]", lstrip=True),
            "additional_special_tokens": ["<|more|>"],
        }
    },
    "an older map that does not count": {
        **config(added_tokens_decoder=behind(token("<|tool|>"))),
        "special_tokens_map": {"pad_token": "[PAD]"},
    },
}


@pytest.mark.parametrize("kind", FILES)
def test_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **FILES[kind])
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    ours = Text(folder).tokenizer
    assert ours.get_vocab() == theirs.get_vocab()
    added, theirs_added = ours.get_added_tokens_decoder(), theirs.added_tokens_decoder
    assert {n: repr(one) for n, one in added.items()} == {
        n: repr(one) for n, one in theirs_added.items()
    }
    strings = hard_strings(tries(300, 2000), [*TEXTS, *SPECIAL, *USER, " <|tool|> ", "x<|more|>y"])
    ids = [encoding.ids for encoding in ours.encode_batch(strings)]
    assert ids == theirs(strings)["input_ids"]
    shown = theirs.batch_decode(ids, skip_special_tokens=True)
    assert ours.decode_batch(ids, skip_special_tokens=True) == shown


def test_tokenizer_json_is_taken_as_it_is_where_nothing_is_added(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    assert tokenizer_json(folder) == (folder / "tokenizer.json").read_bytes()


def test_a_grammar_and_a_template_have_them_too(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **FILES["all"])
    compiler = Compiler(folder, VOCAB_SIZE + 64)
    matcher = compiler.matcher(json.dumps({"grammars": [{"lark_grammar": "start: <|more|>"}]}))
    assert matcher.compute_ff_tokens() == [VOCAB_SIZE + 3]
    assert named_tokens(folder) == {"pad_token": "[PAD]", "img_token": "<img>"}


def test_an_end_that_no_tokenizer_json_has_ends_an_answer(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **config(eos_token="<new>"))
    assert end_token_ids(folder, (0,), VOCAB_SIZE + 1) == (0, VOCAB_SIZE)
    assert end_token_ids(folder, (0,), VOCAB_SIZE) == (0,)  # no answer has it
    (beyond,) = read_tokenizer(folder).beyond(VOCAB_SIZE)
    assert (beyond.id, beyond.content) == (VOCAB_SIZE, "<new>")


CONFLICTS: dict[str, tuple[dict[str, Any], str]] = {
    "another id": (
        config(added_tokens_decoder={"9": token("<s>")}),
        r"the token '<s>': one says that its id is 9, and a tokenizer gives it 0",
    ),
    "a gap": (
        config(added_tokens_decoder={str(VOCAB_SIZE + 5): token("<|tool|>")}),
        rf"the token '<\|tool\|>': one says that its id is {VOCAB_SIZE + 5}, and a",
    ),
    "an id of another's": (
        config(added_tokens_decoder={"0": token("<|tool|>")}),
        r"the token '<\|tool\|>': one says that its id is 0",
    ),
    "an older list": ({"added_tokens": {"<s>": 9}}, r"the token '<s>': one says that its id is 9"),
    "an older list beside a newer one": (
        {**config(added_tokens_decoder={}), "added_tokens": {"<|tool|>": VOCAB_SIZE}},
        rf"the token '<\|tool\|>': one says that its id is {VOCAB_SIZE}, and no tokenizer has it",
    ),
    "no token": (config(pad_token=7), "pad_token is no token: '7'"),
    "no list": (config(extra_special_tokens="<x>"), "extra_special_tokens is no token: '<x>'"),
    "no ids": (config(added_tokens_decoder={"x": token("<x>")}), "added_tokens_decoder is no"),
}


@pytest.mark.parametrize("kind", CONFLICTS)
def test_files_that_do_not_agree_are_refused_by_the_token(kind: str, tmp_path: Path) -> None:
    files, said = CONFLICTS[kind]
    folder = folder_of(tmp_path, **files)
    with pytest.raises(ModelError, match=said):
        read_tokenizer(folder)
    with pytest.raises(ValueError, match=said):
        Text(folder)


def test_an_id_of_tokenizer_json_that_no_tokenizer_counts_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    made = json.loads((folder / "tokenizer.json").read_bytes())
    made["added_tokens"].append({"id": VOCAB_SIZE + 3, **token("<far>")})
    (folder / "tokenizer.json").write_text(json.dumps(made))
    with pytest.raises(ModelError, match="the token '<far>': one says that its id is"):
        read_tokenizer(folder)


def test_a_token_in_a_hole_of_the_vocabulary_is_refused(tmp_path: Path) -> None:
    """The next id is the number of tokens, which may be another's."""
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 2}}}')
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<p>"}')
    with pytest.raises(ModelError, match="two tokens of the id 2: 'b' and '<p>'"):
        read_tokenizer(tmp_path)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "special tokens as text": (
        config(split_special_tokens=True),
        "split_special_tokens is true in its tokenizer_config.json: a chat template's own tokens",
    ),
    "a space before a text": (
        config(add_prefix_space=True),
        "add_prefix_space is true in its tokenizer_config.json, and false in its tokenizer.json",
    ),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_text_is_cut_as_both_files_say(kind: str, tmp_path: Path) -> None:
    files, said = SETTINGS[kind]
    folder = folder_of(tmp_path, **files)
    with pytest.raises(ModelError, match=said):
        read_tokenizer(folder)
    (setting,) = files["tokenizer_config"].keys() - FAST.keys()
    for neutral in (False, None):
        folder_of(tmp_path, **config(**{setting: neutral}))
        assert read_tokenizer(folder).highest == VOCAB_SIZE - 1


def test_a_tokenizer_json_that_adds_a_space_may_be_told_so(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **config(add_prefix_space=True))
    path = folder / "tokenizer.json"
    path.write_text(
        path.read_text().replace('"add_prefix_space": false', '"add_prefix_space": true')
    )
    assert read_tokenizer(folder).highest == VOCAB_SIZE - 1
