"""`echo`: the prompt before its answers, with its tokens' log-probabilities where asked for."""

import asyncio
import json
from typing import Any

import aiohttp
import numpy as np
import pytest
from tokenizers import Tokenizer

from daemon.protocol.api import Generate
from daemon.protocol.worker import PromptLogprobs
from daemon.state.request import sequence_id
from daemon.wire.columns import int32
from tests.api.scripted import MODEL, ScriptedRuntime

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "Hello wörld, hello"
DEPTH = 2


def events_of(answer: bytes) -> list[dict[str, Any]]:
    lines = [line for line in answer.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def told(generate: Generate, start: int, count: int, stream: int = 0) -> PromptLogprobs:
    """Invented ones: token i has -i, the best are the next ids with -0.25 and -0.5."""
    tokens = generate.tokens[start : start + count].tolist()
    return PromptLogprobs(
        sequence_id(generate.request, stream),
        start,
        np.arange(-start, -start - count, -1, dtype=np.float32),
        int32([token + k for token in tokens for k in (1, 2)]),
        np.tile(np.float32([-0.25, -0.5]), count),
    )


def told_in_two(runtime: ScriptedRuntime, generate: Generate) -> None:
    """As two chunks, the first of them twice."""
    rest = len(generate.tokens) - 4
    for start, count in ((1, 3), (1, 3), (4, rest)):
        runtime.send(told(generate, start, count))


async def ask(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, **fields: Any
) -> tuple[Generate, bytes]:
    """The request as the runtime saw it, and the answer; the prompt is scored before it starts."""
    runtime.paused = True
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2, "echo": True, **fields}

    async def posted() -> bytes:
        async with http.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.read()

    waiting = asyncio.create_task(posted())
    (generate,) = await runtime.until(Generate)
    if generate.sampling.prompt_logprobs >= 0:
        told_in_two(runtime, generate)
    runtime.paused = False
    return generate, await waiting


def check_prompt(logprobs: dict[str, Any], generate: Generate, words: Tokenizer) -> int:
    """Fail unless the prompt's part is right; how many tokens it has."""
    count = len(generate.tokens)
    assert logprobs["token_logprobs"][:count] == [None, *(-float(i) for i in range(1, count))]
    assert logprobs["top_logprobs"][0] is None
    assert len(logprobs["top_logprobs"][1]) == DEPTH + 1
    offsets = logprobs["text_offset"][:count]
    encoding = words.encode(PROMPT)
    # The special token at the beginning has no width; parts of a letter begin where it does.
    expected = [begin for begin, _end in encoding.offsets]
    assert offsets == expected
    return count


@pytest.mark.parametrize("n", [1, 2])
async def test_a_prompt_s_logprobs_come_first(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, words: Tokenizer, n: int
) -> None:
    generate, answer = await ask(runtime, http, logprobs=DEPTH, n=n)
    assert generate.hashes == b""
    assert generate.sampling.prompt_logprobs == DEPTH
    choices = json.loads(answer)["choices"]
    assert len(choices) == n
    for choice in choices:
        assert choice["text"].startswith(PROMPT)
        count = check_prompt(choice["logprobs"], generate, words)
        lengths = {len(column) for column in choice["logprobs"].values()}
        assert lengths == {count + 2}
        assert choice["logprobs"]["token_logprobs"][count:] == [-0.5, -0.5]
        assert choice["logprobs"]["text_offset"][count] == len(PROMPT)


async def test_in_a_stream_they_come_with_the_prompt(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, words: Tokenizer
) -> None:
    generate, answer = await ask(runtime, http, logprobs=DEPTH, stream=True)
    events = events_of(answer)
    opening = events[0]["choices"][0]
    assert opening["text"] == PROMPT
    count = check_prompt(opening["logprobs"], generate, words)
    assert len(opening["logprobs"]["tokens"]) == count
    later = [event["choices"][0]["logprobs"] for event in events[1:]]
    offsets = [offset for one in later if one for offset in one["text_offset"]]
    assert offsets[0] == len(PROMPT)


async def test_the_prompt_alone(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, words: Tokenizer
) -> None:
    generate, raw = await ask(runtime, http, logprobs=DEPTH, max_tokens=0)
    assert generate.max_tokens == 1  # the engine's least
    answer = json.loads(raw)
    (choice,) = answer["choices"]
    assert choice["text"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert check_prompt(choice["logprobs"], generate, words) == len(choice["logprobs"]["tokens"])
    assert answer["usage"]["completion_tokens"] == 0
    _generate, raw = await ask_again(runtime, http)
    assert json.loads(raw)["choices"][0]["text"] == PROMPT


async def ask_again(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> tuple[Generate, bytes]:
    runtime.reset()
    return await ask(runtime, http, max_tokens=0)


async def test_without_logprobs_the_cache_is_used(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    generate, answer = await ask(runtime, http)
    assert generate.hashes
    assert generate.sampling.prompt_logprobs == -1
    assert json.loads(answer)["choices"][0]["logprobs"] is None


async def test_no_tokens_only_with_echo(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 0}
    async with http.post("/v1/completions", json=body) as answer:
        assert answer.status == 400
        error = (await answer.json())["error"]
    assert error["param"] == "max_tokens"
    assert "echo" in error["message"]
