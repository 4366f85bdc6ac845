"""Predictions: asked for after the request, told to the runtime, bounded, lost without harm."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
import pytest_asyncio

from daemon.api.config import ApiConfig
from daemon.api.link.predictions import MOST_WAITING, Predictions
from daemon.api.text.text import EXCERPT_CHARS, excerpt
from daemon.config.schema import PredictConfig
from daemon.length_models.store_file import from_bytes
from daemon.protocol.api import FromApi, Generate, PredictedLength, Predicting, RequestRejected
from daemon.protocol.control import PredictorStatus
from daemon.protocol.predictor import Ask, Estimate
from daemon.state.request import FinishReason
from daemon.supervisor import predictor as supervised
from tests.api.scripted import MODEL, Script, ScriptedRuntime
from tests.api.waiting import until_ready
from tests.hangs import HANG_S


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


def ended_after(num_tokens: int) -> Script:
    """Answers that end of themselves with so many tokens, the last one included."""

    def script(message: Generate, _stream: int) -> Iterator[tuple[int, int]]:
        for index in range(num_tokens):
            last = index + 1 == num_tokens
            yield 1 if last else 60, FinishReason.STOP if last else FinishReason.NONE

    return script


async def status(runtime: ScriptedRuntime, **wanted: object) -> None:
    """Wait until the newest report says so."""
    async with asyncio.timeout(HANG_S):
        while True:
            reports = runtime.of(Predicting)
            found = reports[-1].status if reports else None
            if all(getattr(found, name, None) == value for name, value in wanted.items()):
                return
            await asyncio.sleep(0.01)


def predictors(runtime: ScriptedRuntime) -> list[int]:
    """The process's children that predict."""
    folder = Path(f"/proc/{runtime.process.pid}/task/{runtime.process.pid}")
    pids = [int(pid) for pid in (folder / "children").read_text().split()]
    return [pid for pid in pids if b"daemon.predictor" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def child_of(runtime: ScriptedRuntime) -> int:
    """The process id of the process's only predictor."""
    (pid,) = predictors(runtime)
    return pid


async def test_a_prediction_follows_its_request_and_learns_from_whole_answers(
    own: ScriptedRuntime,
):
    own.script = ended_after(12)
    for request in range(1, 4):
        assert await complete(own, max_tokens=100) == 200
        await own.until(PredictedLength, request)
    kinds = [type(one) for one in own.received if isinstance(one, Generate | PredictedLength)]
    assert kinds == [Generate, PredictedLength] * 3
    asked = [message.request for message in own.of(Generate)]
    assert [message.request for message in own.of(PredictedLength)] == asked
    assert own.of(PredictedLength)[-1].num_tokens == 12, "as long as the two before it"
    await status(own, kind="features", up=True, asks=3, answers=3, dropped=0)
    async with aiohttp.ClientSession(own.url) as http, http.get("/metrics") as response:
        assert 'llmd:predictions_total{outcome="answered"} 3.0' in await response.text()


async def test_answers_cut_at_their_limit_say_nothing_of_longer_ones(own: ScriptedRuntime):
    for request in range(1, 12):
        assert await complete(own, max_tokens=3) == 200
        await own.until(PredictedLength, request)
    assert await complete(own, max_tokens=200) == 200
    await own.until(PredictedLength, 12)
    assert [one.num_tokens for one in own.of(PredictedLength)] == [3] * 11 + [200]


async def test_each_prompt_is_asked_about_once_whatever_its_form(own: ScriptedRuntime):
    assert await complete(own, prompt=["one", "two"], n=2) == 200
    await own.until(PredictedLength, 2)
    assert await complete(own, prompt=[[5, 6, 7], [8, 9]]) == 200
    await own.until(PredictedLength, 4)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    async with (
        aiohttp.ClientSession(own.url) as http,
        http.post("/v1/chat/completions", json=chat) as response,
    ):
        assert response.status == 200
    await own.until(PredictedLength, 5)
    asked = sorted(message.request for message in own.of(Generate))
    assert sorted(message.request for message in own.of(PredictedLength)) == asked


async def test_a_refused_request_teaches_nothing(own: ScriptedRuntime):
    own.reject = RequestRejected(0, "queue_full", "full", 1.0)
    assert await complete(own, max_tokens=30) == 429
    own.reject = None
    await own.until(PredictedLength)
    assert await complete(own, max_tokens=250) == 200
    await own.until(PredictedLength, 2)
    first, second = own.of(PredictedLength)
    assert (first.num_tokens, second.num_tokens) == (30, 250), "the first guess, within the limit"


async def test_a_killed_predictor_is_replaced_and_answers_go_on(own: ScriptedRuntime):
    own.may_complain = True
    assert await complete(own) == 200
    await own.until(PredictedLength)
    first = child_of(own)
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(HANG_S):
        while len(own.of(PredictedLength)) < 2:
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


async def test_what_was_learned_is_saved_though_an_answer_never_ends(
    own: ScriptedRuntime, tmp_path: Path
):
    assert await complete(own) == 200
    await own.until(PredictedLength)
    pid, own.paused = child_of(own), True
    async with (
        aiohttp.ClientSession(own.url) as http,
        http.post(
            "/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 3, "stream": True}
        ) as got,
    ):
        await own.until(Generate, 2)
        own.signal(signal.SIGTERM)
        async with asyncio.timeout(HANG_S):
            while Path(f"/proc/{pid}").exists():
                await asyncio.sleep(0.01)
        assert own.process.poll() is None and not got.content.at_eof()
        own.paused = False
        assert (await got.text()).endswith("data: [DONE]\n\n")
    assert await own.exit_status(HANG_S) == 0
    kept, fault = from_bytes((tmp_path / "tiny.lengths").read_bytes())
    assert len(kept) >= 1 and not fault


async def test_without_a_kind_there_is_no_process(folder: Path):
    async with ScriptedRuntime(folder) as runtime:
        await until_ready(runtime.url)
        assert await complete(runtime) == 200
        assert not predictors(runtime)
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
    async with asyncio.timeout(HANG_S):
        while len([one for one in told if isinstance(one, PredictedLength)]) < MOST_WAITING - 1:
            await asyncio.sleep(0.01)
    predicted = [one.request for one in told if isinstance(one, PredictedLength)]
    kept = set(range(3, MOST_WAITING + 3)) - {MOST_WAITING}
    assert predicted == sorted(kept, reverse=True), "the newest first, each once"
    await predictions.close()
    await running


class Beside:
    """Predictions in this process, beside a real predictor process."""

    def __init__(self, store: Path, kind: str = "mean") -> None:
        self.told: list[FromApi] = []
        config = ApiConfig(predict=PredictConfig(kind), predict_store=str(store))
        self.predictions = Predictions(config, self.told.append)

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.predictions.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.predictions.close()
        await self._running

    async def predicted(self, request: int) -> PredictedLength:
        """Ask, and again until one is predicted; what was said."""
        async with asyncio.timeout(HANG_S):
            while True:
                self.predictions.ask(Ask(request, "x", 5, 100))
                await asyncio.sleep(0.02)
                for one in self.told:
                    if isinstance(one, PredictedLength) and one.request == request:
                        return one

    @property
    def pid(self) -> int:
        return self.predictions._process.pid

    @property
    def status(self) -> PredictorStatus:
        self.predictions._report()
        return [one for one in self.told if isinstance(one, Predicting)][-1].status


async def test_a_predictor_that_hangs_is_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(supervised, "ANSWER_S", 0.2)
    async with Beside(tmp_path / "tiny.lengths") as beside:
        await beside.predicted(1)
        first = beside.pid
        os.kill(first, signal.SIGSTOP)
        assert (await beside.predicted(2)).num_tokens
        assert beside.pid not in {0, first}
        assert beside.status.up
    assert f"(pid {first}) is stopped" in caplog.text


async def test_a_predictor_that_is_not_asked_may_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervised, "ANSWER_S", 0.05)
    async with Beside(tmp_path / "tiny.lengths") as beside:
        await beside.predicted(1)
        first = beside.pid
        await asyncio.sleep(0.3)
        assert beside.pid == first
        assert (await beside.predicted(2)).num_tokens


async def test_a_predictor_that_sends_rubbish_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with Beside(tmp_path / "tiny.lengths") as beside:
        await beside.predicted(1)
        first = beside.pid
        beside.predictions._process._frame(b"\xc1")
        assert (await beside.predicted(2)).num_tokens
        assert beside.pid not in {0, first}
    assert "sent no valid answer" in caplog.text


async def test_time_is_counted_of_answers_alone(tmp_path: Path):
    async with Beside(tmp_path / "tiny.lengths") as beside:
        await beside.predicted(1)
        before = beside.status
        beside.predictions._estimated(Estimate(7, 0, 0, took_s=5.0))
        assert beside.status.took_sum_s == before.took_sum_s
        assert beside.status.dropped == before.dropped + 1


def test_a_long_text_is_read_at_both_ends():
    assert excerpt("short") == "short"
    text = "begin " + "x" * 100_000 + " end"
    assert len(excerpt(text)) == EXCERPT_CHARS + 1
    assert excerpt(text).startswith("begin ") and excerpt(text).endswith(" end")
