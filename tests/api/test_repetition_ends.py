"""An answer that repeats itself is ended, and its client is told why."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
import pytest_asyncio

from daemon.protocol.api import FinishSequence, Generate
from daemon.state.request import FinishReason
from tests.api.scripted import MODEL, Answer, ScriptedRuntime
from tests.api.waiting import until_ready

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTEXT = 4096


def phrase(message: Generate, _stream: int) -> Answer:
    """Twelve tokens again and again, as many as may be."""
    for index in range(message.max_tokens):
        last = index + 1 == message.max_tokens
        yield 20 + index % 12, FinishReason.LENGTH if last else FinishReason.NONE


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def long_process(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A process whose model has room for long answers."""
    made = ScriptedRuntime(folder, max_repeated_tokens=400)
    made.serving = msgspec.structs.replace(made.serving, max_len=CONTEXT, context_len=CONTEXT)
    async with made as runtime:
        await until_ready(runtime.url)
        yield runtime


@pytest_asyncio.fixture(loop_scope="session")
async def long(long_process: ScriptedRuntime) -> ScriptedRuntime:
    long_process.reset()
    long_process.script, long_process.tokens_a_step = phrase, 8
    return long_process


async def ask(runtime: ScriptedRuntime, **fields: Any) -> tuple[int, Any]:
    """Status and body of a chat completion."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **fields}
    async with (
        aiohttp.ClientSession(runtime.url) as http,
        http.post("/v1/chat/completions", json=body) as got,
    ):
        return got.status, await got.json()


async def test_an_endless_answer_is_ended_and_says_so(long: ScriptedRuntime) -> None:
    status, body = await ask(long)
    choice = body["choices"][0]
    assert (status, choice["finish_reason"], choice["stop_reason"]) == (200, "length", "repetition")
    assert 400 < body["usage"]["completion_tokens"] < 450
    assert len(await long.until(FinishSequence)) == 1
    async with aiohttp.ClientSession(long.url) as http, http.get("/metrics") as got:
        counted = [one for one in (await got.text()).splitlines() if "request_success" in one]
    assert any('"repetition"' in one and one.endswith(" 1.0") for one in counted)


async def test_a_stream_says_so_in_its_last_piece_and_openais_client_takes_it(
    long: ScriptedRuntime,
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{long.url}/v1", api_key="none") as client:
        stream = await client.completions.create(
            model=MODEL, prompt="hello", max_tokens=CONTEXT // 2, stream=True
        )
        pieces = [piece async for piece in stream]
    reasons = [piece.choices[0].finish_reason for piece in pieces]
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}
    assert pieces[-1].choices[0].model_extra == {"stop_reason": "repetition"}
    assert not pieces[-2].choices[0].model_extra


ENDLESS: list[dict[str, Any]] = [
    {"max_repeated_tokens": 0},
    {"max_repeated_tokens": 600},
    {"ignore_eos": True},
    {"min_tokens": 600},
    {"response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("fields", ENDLESS, ids=[next(iter(one)) for one in ENDLESS])
async def test_where_repetition_is_meant_it_goes_on(
    long: ScriptedRuntime, fields: dict[str, Any]
) -> None:
    _status, body = await ask(long, max_tokens=600, **fields)
    choice = body["choices"][0]
    assert body["usage"]["completion_tokens"] == 600 and choice["finish_reason"] == "length"
    assert "stop_reason" not in choice
    assert not long.of(FinishSequence)


async def test_a_small_bound_is_the_least_that_is_noticed(long: ScriptedRuntime) -> None:
    _status, body = await ask(long, max_repeated_tokens=1)
    assert body["choices"][0]["stop_reason"] == "repetition"
    assert 256 <= body["usage"]["completion_tokens"] < 300
