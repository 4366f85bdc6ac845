"""Deltas add up to the whole decoding, for byte-level and for sentencepiece-like tokenizers."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from daemon.api.text.detokenizer import Detokenizer
from daemon.api.text.token_bytes import TokenBytes
from tests.api.folder import EOS, tokenizer

WORDS = tokenizer()


def sentencepiece() -> Tokenizer:
    """Llama 2's kind: a space is part of a word, other bytes are tokens of their own."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁a", "▁time", "h", "i", "▁▁"]
    made = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>"
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<s>", "</s>"])
    return made


PIECES = sentencepiece()


def hidden(words: Tokenizer) -> set[int]:
    return {number for number, one in words.get_added_tokens_decoder().items() if one.special}


def deltas(words: Tokenizer, output: list[int]) -> list[str]:
    """What a client sees."""
    made = Detokenizer(TokenBytes(words), hidden(words))
    return [*map(made.push, output), made.flush()]


def shown(words: Tokenizer, output: list[int]) -> str:
    """All of it."""
    return "".join(deltas(words, output))


@given(st.text(max_size=20))
def test_text_survives(text: str):
    output = WORDS.encode(text, add_special_tokens=False).ids
    assert shown(WORDS, output) == text


@given(st.lists(st.integers(0, 399), max_size=40))
def test_any_tokens_byte_level(output: list[int]):
    output = [token for token in output if WORDS.id_to_token(token)]
    assert shown(WORDS, output) == WORDS.decode(output)


@given(st.text(max_size=20))
def test_text_survives_byte_fallback(text: str):
    prompt = [1, PIECES.token_to_id("▁time")]
    output = PIECES.encode(text, add_special_tokens=False).ids
    assert shown(PIECES, output) == PIECES.decode(prompt + output)[len("time") :]


@given(st.lists(st.integers(2, PIECES.get_vocab_size() - 1), max_size=40))
def test_broken_bytes_do_not_break_the_stream(output: list[int]):
    # Byte fallback turns a whole run of bytes to replacements once one of them is wrong, also
    # those that were shown: what is shown can differ there, and nowhere else.
    end = PIECES.token_to_id("▁time")
    assert shown(PIECES, [*output, end]).endswith(" time")


@pytest.mark.parametrize("words", [WORDS, PIECES])
@pytest.mark.parametrize("text", ["é", "日", "🦉"])
def test_bytes_that_are_no_letter_are_shown_as_they_come(words: Tokenizer, text: str):
    lone = words.encode(text, add_special_tokens=False).ids[-1]
    assert deltas(words, [lone] * 5) == ["\ufffd"] * 5 + [""]


@pytest.mark.parametrize("words", [WORDS, PIECES])
def test_an_unfinished_letter_is_shown_at_the_next_text(words: Tokenizer):
    first, second, *_ = words.encode("🦉", add_special_tokens=False).ids[-4:]
    letter = words.encode("h", add_special_tokens=False).ids[-1]
    assert deltas(words, [first, second, letter]) == ["", "", "\ufffdh", ""]
    assert deltas(words, [first, second]) == ["", "", "\ufffd"]


@pytest.mark.parametrize("text", ["🦉", "<eos>"])
def test_a_run_costs_as_much_as_words_do(text: str):
    token = WORDS.encode(text, add_special_tokens=False).ids[-1]
    words = cpu_s(WORDS.encode(" hello", add_special_tokens=False).ids[-1])
    assert cpu_s(token) < 20 * words  # a text that was decoded anew for each would cost 1000 times


def cpu_s(token: int) -> float:
    """Of 10,000 tokens, the least of three runs."""
    took_s = []
    for _ in range(3):
        push = Detokenizer(TokenBytes(WORDS), hidden(WORDS)).push
        began_s = time.thread_time()
        for _ in range(10_000):
            push(token)
        took_s.append(time.thread_time() - began_s)
    return min(took_s)


def word_pieces() -> Tokenizer:
    """BERT's kind: a space before each word, and pieces of words that have none."""
    pieces = ["[UNK]", "a", "h", "##i", "it", ".", "n't"]
    made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}))
    made.decoder = decoders.WordPiece()
    return made


def metaspace() -> Tokenizer:
    """T5's kind."""
    pieces = [("<unk>", 0.0), ("a", -1.0), ("▁it", -2.0), ("▁", -1.0), ("h", -1.0)]
    made = Tokenizer(models.Unigram(pieces, 0))
    made.decoder = decoders.Metaspace()
    return made


@pytest.mark.parametrize("words", [WORDS, PIECES, word_pieces(), metaspace()])
@given(data=st.data())
def test_any_decoder_is_followed_in_the_middle_of_a_text(words: Tokenizer, data: st.DataObject):
    anchor = words.token_to_id("h")
    known = [i for i in range(words.get_vocab_size()) if words.decode([anchor, i]).isascii()]
    output = data.draw(st.lists(st.sampled_from(known), max_size=20))
    output = [token for token in output if token not in hidden(words)]
    whole = words.decode([anchor, *output])
    assert shown(words, output) == whole.removeprefix(words.decode([anchor]))


def test_an_answer_keeps_its_first_space():
    word = PIECES.token_to_id("▁time")
    assert shown(PIECES, [PIECES.token_to_id("▁a"), word]) == " a time"


def test_special_tokens_have_no_text_unless_they_are_wanted():
    said = WORDS.encode("one two", add_special_tokens=False).ids
    assert shown(WORDS, [EOS, *said, EOS, EOS]) == "one two"
    every = Detokenizer(TokenBytes(WORDS), frozenset())
    assert "".join(map(every.push, [EOS, *said, EOS])) == "<eos>one two<eos>"


def test_marked_tokens_have_a_text():
    made = tokenizer()
    made.add_special_tokens(["<|python_tag|>"])
    marker = made.token_to_id("<|python_tag|>")
    emoji = made.encode("🙂", add_special_tokens=False).ids
    assert len(emoji) > 2
    for before, text in ((emoji, "🙂"), (emoji[:2], "\ufffd")):
        tokens = [*before, marker, *made.encode("é after", add_special_tokens=False).ids]
        assert "<|python_tag|>" not in shown(made, tokens)
        marked = Detokenizer(TokenBytes(made), hidden(made) - {marker})
        assert "".join(map(marked.push, tokens)) == f"{text}<|python_tag|>é after"
