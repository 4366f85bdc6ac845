"""A worker that is started before its model is known: taken once, or ended."""

import asyncio
import os
import signal
from collections.abc import Awaitable
from pathlib import Path

import pytest

from daemon.supervisor import early as early_module
from daemon.supervisor.early import EarlyWorker
from daemon.supervisor.spare import WORKER, StartedWorker, with_links
from daemon.wire.faults import TEST_MODE
from tests.engine.process import cpu_load
from tests.hangs import HANG_S
from tests.supervisor.model_folder import write_llama
from tests.supervisor.test_worker import Told
from tests.supervisor.waiting import exists, until
from tests.wire.descriptors import open_descriptors


def at_work(_device: str, *_flags: str) -> Awaitable[StartedWorker]:
    """A process that says what a worker does, and imports and loads nothing."""
    return with_links("tests.supervisor.child_program", ["works"])


async def test_the_first_life_is_the_early_worker_s_and_the_second_a_new_one_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TEST_MODE, "1")
    monkeypatch.setenv(WORKER, "tests.chaos.worker")
    before = open_descriptors()
    early = EarlyWorker("cpu")
    await early.start()
    load = cpu_load(str(write_llama(tmp_path)), num_threads=1)
    told = Told(load, early=early)
    running = asyncio.create_task(told.worker.run())
    await until(lambda: len(told.readies) == 1)
    first, token = told.worker.pid, await told.first_token()
    assert early.take("cpu") is None, "it is taken"
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(told.readies) == 2)
    assert told.worker.pid != first
    assert await told.first_token() == token
    await early.close()
    assert await told.worker.close() == 0
    await asyncio.wait_for(running, HANG_S)
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_one_of_another_kind_or_dead_is_not_taken_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early_module, "start_worker", at_work)
    before = open_descriptors()
    early = EarlyWorker("cuda")
    assert early.take("cuda:0") is None, "there is none yet"
    await early.start()
    assert early.take("cpu") is None
    started = early.take("cuda:1")
    assert started is not None and exists(started.child.pid)
    started.hang_up()
    await started.child.end(0.0, signal.SIGKILL)

    await early.start()
    dead = early._started
    assert dead is not None
    os.kill(dead.child.pid, signal.SIGKILL)
    await until(lambda: not dead.child.alive)
    assert early.take("cuda:1") is None
    await early.close()
    await early.close()
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_where_none_can_be_started_it_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def none(_device: str) -> StartedWorker:
        raise OSError("no more processes")

    monkeypatch.setattr(early_module, "start_worker", none)
    early = EarlyWorker("cpu")
    await early.start()
    assert early.take("cpu") is None
    assert "no worker is started early: no more processes" in caplog.text
    await early.close()
