"""The real predictor process under its supervisor: answering, killed, replaced, ended."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from daemon.protocol.predictor import Ask, Ended, Estimate
from daemon.supervisor import predictor
from daemon.supervisor.predictor import PredictorHooks, PredictorProcess
from tests.hangs import HANG_S
from tests.supervisor.waiting import exists, until
from tests.wire.descriptors import open_descriptors

CONFIG = ["--config", '{"kind": "mean"}']


class Told:
    """All that a predictor's supervisor told."""

    def __init__(self, *arguments: str, kill: bool = False) -> None:
        self.story: list[str] = []
        self.answers: list[Estimate] = []
        self._kill = kill
        hooks = PredictorHooks(self._up, self.answers.append, lambda: self.story.append("lost"))
        self.process = PredictorProcess(arguments, hooks)

    def _up(self) -> None:
        self.story.append("up")
        if self._kill:
            os.kill(self.process.pid, signal.SIGKILL)

    async def ask(self, request: int) -> Estimate:
        self.process.send(Ask(request, "What is an owl?", 5, 100))
        await until(lambda: bool(self.answers) and self.answers[-1].request == request)
        return self.answers[-1]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    return ["--store", str(tmp_path / "tiny.lengths"), *CONFIG]


async def test_a_predictor_s_life(arguments: list[str], caplog: pytest.LogCaptureFixture) -> None:
    before = open_descriptors()
    told = Told(*arguments)
    assert told.process.pid == 0 and not told.process.up
    running = asyncio.create_task(told.process.run())
    await until(lambda: told.process.up)
    first = told.process.pid
    assert (await told.ask(1)).num_tokens > 0
    with caplog.at_level(logging.ERROR):
        os.kill(first, signal.SIGKILL)
        await until(lambda: told.story == ["up", "lost", "up"])
    assert f"the predictor process (pid {first}) ended with status -9" in caplog.text
    assert told.process.pid != first and not exists(first)
    assert (await told.ask(2)).num_tokens > 0
    told.process.send(Ended(2, 33))
    second = told.process.pid
    await told.process.close()
    await asyncio.wait_for(running, HANG_S)
    assert told.process.pid == 0 and not exists(second) and not told.process.up
    assert Path(arguments[1]).exists(), "it saved what it had learned"
    told.process.send(Ended(3, 3))
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_one_that_dies_again_and_again_rests_and_closes_at_once(
    arguments: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    told = Told(*arguments, kill=True)
    running = asyncio.create_task(told.process.run())
    await until(lambda: "again and again" in caplog.text)
    assert told.story == ["up", "lost"] * 6
    await told.process.close()
    await asyncio.wait_for(running, HANG_S)
    assert told.story == ["up", "lost"] * 6


async def test_after_its_rest_it_is_started_again(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictor, "REST_S", 0.01)
    told = Told(*arguments, kill=True)
    running = asyncio.create_task(told.process.run())
    await until(lambda: told.story.count("up") > 7)
    await told.process.close()
    await asyncio.wait_for(running, HANG_S)


async def test_closing_while_it_is_being_started(arguments: list[str]) -> None:
    told = Told(*arguments)
    running = asyncio.create_task(told.process.run())
    await asyncio.sleep(0)
    await told.process.close()
    await asyncio.wait_for(running, HANG_S)
    assert told.process.pid == 0 and not told.story


async def test_what_is_sent_before_and_after_is_lost_and_no_error(arguments: list[str]) -> None:
    told = Told(*arguments)
    told.process.send(Ask(1, "x", 5, 100))
    await told.process.close()
    told.process.send(Ask(2, "x", 5, 100))
    await told.process.run()
    assert not told.story and not told.answers


async def test_a_stopped_one_is_replaced_once_it_owes_an_answer(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(predictor, "ANSWER_S", 0.5)
    told = Told(*arguments)
    running = asyncio.create_task(told.process.run())
    await until(lambda: told.process.up)
    await told.ask(1)
    stopped = told.process.pid
    os.kill(stopped, signal.SIGSTOP)
    told.process.send(Ask(2, "What is an owl?", 5, 100))
    await until(lambda: told.story == ["up", "lost", "up"])
    assert f"(pid {stopped}) is stopped" in caplog.text
    assert (await told.ask(3)).num_tokens > 0 and not exists(stopped)
    last = told.process.pid
    os.kill(last, signal.SIGSTOP)
    monkeypatch.setattr(predictor, "END_GRACE_S", 0.2)
    await told.process.close()
    await asyncio.wait_for(running, HANG_S)
    assert not exists(last), "a stopped one does not outlive the end"


async def test_one_that_waits_for_a_disk_for_ever_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(predictor, "FIRST_ANSWER_S", 0.5)
    store = tmp_path / "store"
    os.mkfifo(store)
    told = Told("--store", str(store), *CONFIG)
    running = asyncio.create_task(told.process.run())
    await until(lambda: told.process.up)
    first = told.process.pid
    told.process.send(Ask(1, "What is an owl?", 5, 100))
    await until(lambda: told.story == ["up", "lost", "up"])
    assert f"(pid {first}) gave no answer in 0.5 s" in caplog.text and not exists(first)
    monkeypatch.setattr(predictor, "END_GRACE_S", 0.2)
    await told.process.close()
    await asyncio.wait_for(running, HANG_S)
