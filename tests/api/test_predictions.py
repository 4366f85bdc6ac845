"""Predictions: asked for after the request, told to the runtime, bounded, lost without harm."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from daemon.api.config import ApiConfig
from daemon.api.predictions import MOST_WAITING, Predictions
from daemon.api.text import EXCERPT_CHARS, excerpt
from daemon.config.schema import PredictConfig
from daemon.predictor.protocol import Ask
from daemon.runtime.protocol import FromApi, Generate, Predicted, Predicting, Rejected
from tests.api.scripted import MODEL, ScriptedRuntime
from tests.api.waiting import until_ready


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return {"predict": {"kind": "features"}, "predict_store": str(tmp_path / "tiny.lengths")}


@pytest_asyncio.fixture
async def own(folder: Path, config: dict[str, Any]) -> AsyncIterator[ScriptedRuntime]:
    """An API process with a predictor process beside it."""
    async with ScriptedRuntime(folder, **config) as runtime:
        await until_ready(runtime.url)
        await status(runtime, up=True)
        yield runtime


async def complete(runtime: ScriptedRuntime, **fields: Any) -> int:
    """One plain completion; its status."""
    body = {"model": MODEL, "prompt": "hello there", "max_tokens": 12, **fields}
    async with (
        aiohttp.ClientSession(runtime.url) as http,
        http.post("/v1/completions", json=body) as response,
    ):
        await response.read()
        return response.status


async def status(runtime: ScriptedRuntime, **wanted: object) -> None:
    """Wait until the newest report says so."""
    async with asyncio.timeout(10):
        while True:
            reports = runtime.of(Predicting)
            found = reports[-1].status if reports else None
            if all(getattr(found, name, None) == value for name, value in wanted.items()):
                return
            await asyncio.sleep(0.01)


def child_of(runtime: ScriptedRuntime) -> int:
    """The predictor's process id."""
    folder = Path(f"/proc/{runtime.process.pid}/task/{runtime.process.pid}")
    (pid,) = (folder / "children").read_text().split()
    return int(pid)


async def test_a_prediction_follows_its_request_and_learns_from_answers(own: ScriptedRuntime):
    for request in range(1, 4):
        assert await complete(own) == 200
        await own.until(Predicted, request)
    kinds = [type(one) for one in own.received if isinstance(one, Generate | Predicted)]
    assert kinds == [Generate, Predicted] * 3
    asked = [message.request for message in own.of(Generate)]
    assert [message.request for message in own.of(Predicted)] == asked
    assert own.of(Predicted)[-1].num_tokens == 12, "as long as the two before it"
    await status(own, kind="features", up=True, asks=3, answers=3, dropped=0)


async def test_each_prompt_is_asked_about_once_whatever_its_form(own: ScriptedRuntime):
    assert await complete(own, prompt=["one", "two"], n=2) == 200
    assert await complete(own, prompt=[[5, 6, 7], [8, 9]]) == 200
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    async with (
        aiohttp.ClientSession(own.url) as http,
        http.post("/v1/chat/completions", json=chat) as response,
    ):
        assert response.status == 200
    await own.until(Predicted, 5)
    asked = sorted(message.request for message in own.of(Generate))
    assert sorted(message.request for message in own.of(Predicted)) == asked


async def test_a_refused_request_teaches_nothing(own: ScriptedRuntime):
    own.reject = Rejected(0, "queue_full", "full", 1.0)
    assert await complete(own, max_tokens=30) == 429
    own.reject = None
    await own.until(Predicted)
    assert await complete(own, max_tokens=250) == 200
    await own.until(Predicted, 2)
    first, second = own.of(Predicted)
    assert (first.num_tokens, second.num_tokens) == (30, 250), "the first guess, within the limit"


async def test_a_killed_predictor_is_replaced_and_answers_go_on(own: ScriptedRuntime):
    own.may_complain = True
    assert await complete(own) == 200
    await own.until(Predicted)
    first = child_of(own)
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(20):
        while len(own.of(Predicted)) < 2:
            assert await complete(own) == 200
    assert child_of(own) != first


async def test_a_stopped_predictor_holds_nobody_up(own: ScriptedRuntime):
    pid = child_of(own)
    os.kill(pid, signal.SIGSTOP)
    try:
        statuses = await asyncio.gather(*(complete(own, n=2) for _ in range(40)))
        assert statuses == [200] * 40
        await status(own, asks=40, answers=0, dropped=38)
    finally:
        os.kill(pid, signal.SIGCONT)
    await status(own, asks=40, answers=2)


async def test_without_a_kind_there_is_no_process(folder: Path):
    async with ScriptedRuntime(folder) as runtime:
        await until_ready(runtime.url)
        assert await complete(runtime) == 200
        folder = Path(f"/proc/{runtime.process.pid}/task/{runtime.process.pid}")
        assert not (folder / "children").read_text().split()
        assert not runtime.of(Predicting)


async def test_the_oldest_ask_goes_where_too_many_wait(tmp_path: Path):
    told: list[FromApi] = []
    config = ApiConfig(predict=PredictConfig("mean"), predict_store=str(tmp_path / "tiny.lengths"))
    predictions = Predictions(config, told.append)
    for request in range(MOST_WAITING + 3):
        predictions.ask(Ask(request, "x", 5, 100))
    for request in (0, MOST_WAITING):  # one was dropped before, one still waits
        predictions.ended(request, 7)
    running = asyncio.create_task(predictions.run())
    async with asyncio.timeout(20):
        while len([one for one in told if isinstance(one, Predicted)]) < MOST_WAITING - 1:
            await asyncio.sleep(0.01)
    foretold = [one.request for one in told if isinstance(one, Predicted)]
    kept = set(range(3, MOST_WAITING + 3)) - {MOST_WAITING}
    assert foretold == sorted(kept), "in their order, each once"
    await predictions.close()
    await running


def test_a_long_text_is_read_at_both_ends():
    assert excerpt("short") == "short"
    text = "begin " + "x" * 100_000 + " end"
    assert len(excerpt(text)) == EXCERPT_CHARS + 1
    assert excerpt(text).startswith("begin ") and excerpt(text).endswith(" end")
