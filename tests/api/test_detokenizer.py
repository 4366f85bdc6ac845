"""Deltas add up to the whole decoding, for byte-level and for sentencepiece-like tokenizers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from daemon.api.detokenizer import Detokenizer, MarkedDetokenizer
from daemon.wire.columns import int32
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


def deltas(words: Tokenizer, prompt: list[int], output: list[int]) -> str:
    """What a client sees."""
    made = Detokenizer(words, int32(prompt))
    return "".join(made.push(token) for token in output) + made.flush()


@given(st.text(max_size=20))
def test_text_survives(text: str):
    output = WORDS.encode(text, add_special_tokens=False).ids
    assert deltas(WORDS, [5], output) == text


@given(st.lists(st.integers(0, 399), max_size=40), st.lists(st.integers(0, 399), max_size=8))
def test_any_tokens_byte_level(output: list[int], prompt: list[int]):
    output = [token for token in output if WORDS.id_to_token(token)]
    prompt = [token for token in prompt if WORDS.id_to_token(token)]
    whole = WORDS.decode(output)
    shown = deltas(WORDS, prompt, output)
    if not WORDS.decode(prompt).endswith("\ufffd"):
        assert shown == whole


@given(st.text(max_size=20))
def test_text_survives_byte_fallback(text: str):
    prompt = [1, PIECES.token_to_id("▁time")]
    output = PIECES.encode(text, add_special_tokens=False).ids
    assert deltas(PIECES, prompt, output) == PIECES.decode(prompt + output)[len("time") :]


@given(st.lists(st.integers(2, PIECES.get_vocab_size() - 1), max_size=40))
def test_broken_bytes_do_not_break_the_stream(output: list[int]):
    # Byte fallback turns a whole run of bytes to replacements once one of them is wrong, also
    # those that were shown: what is shown can differ there, and nowhere else.
    end = PIECES.token_to_id("▁time")
    assert deltas(PIECES, [1, end], [*output, end]).endswith(" time")


def test_an_answer_keeps_its_first_space():
    time = PIECES.token_to_id("▁time")
    assert deltas(PIECES, [1, time], [PIECES.token_to_id("▁a"), time]) == " a time"


def test_special_tokens_have_no_text():
    said = WORDS.encode("one two", add_special_tokens=False).ids
    assert deltas(WORDS, said, [EOS, *said, EOS, EOS]) == "one two"


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_prompt_that_ends_inside_a_character_is_not_shown(cut: int):
    emoji = WORDS.encode("🙂", add_special_tokens=False).ids
    said = WORDS.encode(" one", add_special_tokens=False).ids
    prompt = [*WORDS.encode("hello hello hello").ids, *emoji[:cut]]
    assert "hello" not in deltas(WORDS, prompt, [*emoji[cut:], *said])


def test_marked_tokens_have_a_text():
    made = tokenizer()
    made.add_special_tokens(["<|python_tag|>"])
    marker = made.token_to_id("<|python_tag|>")
    emoji = made.encode("🙂", add_special_tokens=False).ids
    assert len(emoji) > 2
    for before, shown in ((emoji, "🙂"), (emoji[:2], "\ufffd")):
        tokens = [*before, marker, *made.encode("é after", add_special_tokens=False).ids]
        assert "<|python_tag|>" not in "".join(map(Detokenizer(made, int32([5])).push, tokens))
        marked = MarkedDetokenizer(made, int32([5]), {marker: "<|python_tag|>"})
        assert "".join(map(marked.push, tokens)) == f"{shown}<|python_tag|>é after"
