"""`text_offset` counts letters of the text that the client has: of answers, prompts, and both."""

import itertools
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, processors

from daemon.api.text.detokenizer import Detokenizer
from daemon.api.text.offsets import offsets_of_spans, offsets_of_tokens, with_whole_spans
from daemon.api.text.token_bytes import TokenBytes
from daemon.protocol.api import Generate
from daemon.state.request import FinishReason
from tests.api.folder import BOS, EOS, tokenizer
from tests.api.scripted import MODEL, Answer, ScriptedRuntime
from tests.api.test_detokenizer import PIECES, hidden
from tests.api.test_echo import events_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORDS = tokenizer()
SAID = "é🦉 one\ufffd日本 two"


def tokens_of(text: str) -> list[int]:
    return [int(token) for token in WORDS.encode(text, add_special_tokens=False).ids]


def answer(message: Generate, stream: int) -> Answer:
    """Letters of several tokens, special tokens that are not shown, a broken letter; a longer one
    for each stream.
    """
    said = [EOS, *tokens_of("a" * stream + SAID), EOS, BOS, *tokens_of("🦉")[:2], *tokens_of(" x")]
    for index, token in enumerate(said):
        last = index + 1 == len(said)
        yield token, FinishReason.LENGTH if last else FinishReason.NONE


def check(text: str, logprobs: dict[str, Any], begin: int = 0) -> None:
    """Fail unless each token that is a text of its own stands where its offset says."""
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets) and len(offsets) == len(logprobs["tokens"])
    ends = [*offsets[1:], len(text)]
    for token, offset, end in zip(logprobs["tokens"], offsets, ends, strict=True):
        if token in {"<eos>", "<bos>"}:
            assert end == offset
        elif not token.startswith("bytes:"):
            # A letter that the token before began, and that stays unfinished, is shown with it.
            assert text[offset:end].lstrip("\ufffd") == token.lstrip("\ufffd")
    assert offsets[0] == begin


@pytest.mark.parametrize("echo", [False, True])
async def test_of_several_answers(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, echo: bool
) -> None:
    runtime.script = answer
    for prompts in ("🦉 hello", ["🦉 hello", "o"], [tokens_of("two 🦉"), [BOS, 300, EOS]]):
        body = {"model": MODEL, "prompt": prompts, "n": 2, "logprobs": 1, "max_tokens": 90}
        async with http.post("/v1/completions", json={**body, "echo": echo}) as got:
            choices = (await got.json())["choices"]
        assert len(choices) == (2 if isinstance(prompts, str) else 4)
        for choice in choices:
            logprobs = choice["logprobs"]
            if echo:
                stream = choice["index"] % 2
                begin = choice["text"].index("a" * stream + SAID)
                num_answered = len(list(answer(runtime.of(Generate)[0], stream)))
                assert logprobs["text_offset"][-num_answered] == begin
            check(choice["text"], logprobs)


async def test_in_a_stream_they_are_those_of_the_whole_answer(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    runtime.script = answer
    body = {"model": MODEL, "prompt": "hello", "logprobs": 0, "max_tokens": 90}
    async with http.post("/v1/completions", json=body) as got:
        whole = (await got.json())["choices"][0]
    async with http.post("/v1/completions", json={**body, "stream": True}) as got:
        events = [one["choices"][0] for one in events_of(await got.read())]
    pieces = [one["logprobs"]["text_offset"] for one in events if one["logprobs"]]
    assert "".join(one["text"] for one in events) == whole["text"]
    assert list(itertools.chain(*pieces)) == whole["logprobs"]["text_offset"]


async def test_special_tokens_count_where_they_are_shown(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    runtime.script = answer
    body = {"model": MODEL, "prompt": "hello", "logprobs": 0, "max_tokens": 90}
    async with http.post("/v1/completions", json={**body, "skip_special_tokens": False}) as got:
        choice = (await got.json())["choices"][0]
    assert choice["text"] == f"<eos>{SAID}<eos><bos>\ufffd x"
    offsets = dict(
        zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True)
    )
    assert choice["text"][offsets["<bos>"] :].startswith("<bos>")


async def test_of_a_prompt_whose_text_the_tokenizer_changes() -> None:
    changed = tokenizer()
    changed.normalizer = normalizers.NFC()
    text = "e\u0301" * 9 + " one two"  # two letters each, that become one
    offsets = offsets_of_spans(changed.encode(text).offsets)
    pieces = [text[begin:end] for begin, end in itertools.pairwise([*offsets, len(text)])]
    words = changed.encode(" one two", add_special_tokens=False)
    assert pieces[-len(words.ids) :] == [" one two"[begin:end] for begin, end in words.offsets]
    assert "".join(pieces) == text


@settings(deadline=None)
@given(st.text(max_size=30))
async def test_a_tokenizer_that_trims_its_spans(text: str) -> None:
    """GPT-2's kind says of a word with a space before it that it begins behind the space."""
    trimming, plain = tokenizer(), tokenizer()
    trimming.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True)])
    plain.post_processor = processors.ByteLevel(trim_offsets=False)
    trimming = with_whole_spans(trimming)
    exact = offsets_of_spans(plain.encode(text).offsets)
    assert offsets_of_spans(trimming.encode(text).offsets) == exact
    assert exact == offsets_of_tokens(text, plain.encode(text).ids, made(plain))


@given(st.text(alphabet="aim 日🦉 te", max_size=20))
async def test_a_text_whose_first_space_is_left_out(text: str) -> None:
    tokens = PIECES.encode(text, add_special_tokens=False).ids
    if tokens:
        shown = PIECES.decode(tokens)
        offsets = offsets_of_tokens(shown, tokens, made(PIECES))
        assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= len(shown)
        word = PIECES.token_to_id("▁time")
        for token, offset in zip(tokens[1:], offsets[1:], strict=True):
            assert token != word or shown[offset:].startswith(" time")


def made(words: Tokenizer) -> Detokenizer:
    return Detokenizer(TokenBytes(words), hidden(words))
