"""A worker under its supervisor: ready, answering, killed, replaced, ended.

It computes a toy where nothing is about the engine; real ones die in `test_spare.py` and
`test_worker_faults.py`.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from daemon.engine.worker.main import EngineWorker
from daemon.protocol.worker import Copied, Fallback, Load, Loading, Ready, Reply
from daemon.supervisor import worker as worker_module
from daemon.supervisor.early import EarlyWorker
from daemon.supervisor.proxy import ClusterOrder
from daemon.supervisor.spare import WORKER, Spare
from daemon.supervisor.worker import WorkerHooks, WorkerProcess
from daemon.wire.blocking import BlockingChannel
from daemon.wire.faults import TEST_MODE
from tests.engine.driver import Driver
from tests.engine.process import cpu_load
from tests.hangs import HANG_S
from tests.supervisor.model_folder import write_llama
from tests.supervisor.waiting import exists, until
from tests.wire.descriptors import open_descriptors

PROMPT = [5, 17, 90, 33, 8, 121, 64, 2, 77]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started computes a toy."""
    monkeypatch.setenv(TEST_MODE, "1")
    monkeypatch.setenv(WORKER, "tests.chaos.worker")
    monkeypatch.setattr(worker_module, "END_GRACE_S", 4 * HANG_S)


class Told:
    """All that a worker's supervisor told."""

    def __init__(
        self,
        load: Load,
        restarts: int = 5,
        spare: Spare | None = None,
        early: EarlyWorker | None = None,
        other_loads: Sequence[Load] = (),
        cluster: ClusterOrder | None = None,
    ) -> None:
        self.story: list[str] = []
        self.readies: list[Ready] = []
        self.replies: list[Reply] = []
        self.copies: list[Copied] = []
        self.blamed: list[bool] = []
        self.why = ""
        hooks = WorkerHooks(
            self._loading, self._ready, self._reply, self._lost, self._hopeless, self._copied
        )
        parts = load, hooks, restarts, spare, early, other_loads, cluster
        self.worker = WorkerProcess(4, "first", *parts)

    def _tell(self, instance: int, word: str) -> None:
        assert instance == 4
        if self.story[-1:] != [word]:
            self.story.append(word)

    def _loading(self, instance: int, progress: Loading) -> None:
        assert progress.stage and 0.0 <= progress.fraction <= 1.0
        self._tell(instance, "loading")

    def _ready(self, instance: int, ready: Ready) -> None:
        self.readies.append(ready)
        self._tell(instance, "ready")

    def _reply(self, instance: int, reply: Reply) -> None:
        self.replies.append(reply)
        self._tell(instance, "reply")

    def _copied(self, instance: int, copied: Copied) -> None:
        self.copies.append(copied)
        self._tell(instance, "copied")

    def _lost(self, instance: int, blamed: bool) -> None:
        self.blamed.append(blamed)
        self._tell(instance, "lost")

    def _hopeless(self, instance: int, why: str) -> None:
        self.why = why
        self._tell(instance, "hopeless")

    def send_prompt(self) -> None:
        """A step of a fresh worker that computes the prompt."""
        plans = Driver(16, list(range(64)))
        self.worker.send(plans.plan([(plans.add(0, PROMPT), len(PROMPT))]))

    async def first_token(self) -> int:
        """The token that a fresh worker draws after the prompt."""
        answered = len(self.replies)
        self.send_prompt()
        await until(lambda: len(self.replies) > answered)
        return int(self.replies[-1].tokens[0])


@pytest.mark.usefixtures("_toy")
async def test_a_worker_s_life(folder: str) -> None:
    before = open_descriptors()
    told = Told(cpu_load(folder, num_host_blocks=2))
    assert told.worker.pid == 0
    running = asyncio.create_task(told.worker.run())
    await until(lambda: len(told.readies) == 1)
    first = told.worker.pid
    assert first and exists(first)
    token = await told.first_token()
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(told.readies) == 2)
    second = told.worker.pid
    assert second != first and not exists(first)
    assert await told.first_token() == token, "it computes as its predecessor did"
    assert told.story == ["loading", "ready", "reply", "lost", "loading", "ready", "reply"]
    plans = Driver(16, [])
    plans.outs = [(3, 1)]
    told.worker.send(plans.plan([]))
    await until(lambda: len(told.copies) == 1)
    assert (told.copies[0].step, told.copies[0].num_out) == (1, 1)
    assert await told.worker.close() == 0
    await asyncio.wait_for(running, HANG_S)
    assert told.story.count("lost") == 1, "an end that was asked for is no loss"
    assert told.worker.pid == 0 and not exists(second)
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


@pytest.mark.usefixtures("_toy")
async def test_a_model_that_cannot_load_is_hopeless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told(cpu_load(str(tmp_path / "nothing")))
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(told.worker.run(), HANG_S)
    assert told.story[-2:] == ["lost", "hopeless"]
    assert told.why.startswith("worker first: ")
    assert "nothing is not a folder" in told.why
    assert told.worker.pid == 0
    assert "died" in caplog.records[-1].message
    await told.worker.close()


async def test_a_worker_killed_while_it_loads_is_hopeless(folder: str) -> None:
    told = Told(cpu_load(folder))
    running = asyncio.create_task(told.worker.run())
    await until(lambda: told.worker.pid > 0)
    os.kill(told.worker.pid, signal.SIGKILL)
    await asyncio.wait_for(running, HANG_S)
    assert told.why == "worker first: exit status -9"
    assert told.story[-2:] == ["lost", "hopeless"]


async def test_kernels_that_a_worker_does_without_are_told_of() -> None:
    told: list[tuple[int, Fallback]] = []
    nothing = [lambda *_: None] * 6
    hooks = WorkerHooks(*nothing, fallback=lambda *said: told.append(said))
    process = WorkerProcess(4, "first", cpu_load("nowhere"), hooks)
    ours, theirs = socket.socketpair()
    with ours:
        EngineWorker(BlockingChannel(theirs))._fallen("decode", "no such card")
        process._frame(BlockingChannel(ours).receive() or b"")
    assert told == [(4, Fallback("decode", "no such card"))]


async def test_closing_while_the_process_is_being_started(folder: str) -> None:
    told = Told(cpu_load(folder))
    running = asyncio.create_task(told.worker.run())
    await asyncio.sleep(0)
    assert told.worker.pid == 0
    await told.worker.close()
    await asyncio.wait_for(running, HANG_S)
    assert told.worker.pid == 0 and not told.story


async def test_closing_while_it_loads_waits_for_nothing(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "END_GRACE_S", 4 * HANG_S)
    told = Told(cpu_load(folder))
    running = asyncio.create_task(told.worker.run())
    await until(lambda: told.worker.pid > 0)
    assert await asyncio.wait_for(told.worker.close(), HANG_S) == -signal.SIGKILL
    await asyncio.wait_for(running, HANG_S)
    assert not told.why


async def test_closing_what_never_ran(folder: str) -> None:
    await Told(cpu_load(folder)).worker.close()
