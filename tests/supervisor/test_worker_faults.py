"""Real workers that are stopped and hang, under their supervisor."""

import asyncio
import os
import signal
from itertools import count
from pathlib import Path

import pytest

from daemon.supervisor import silence, step_watch, worker
from daemon.supervisor.spare import StartedWorker, with_links
from daemon.wire.faults import TEST_MODE, VARIABLE, Fault
from tests.engine.process import cpu_load
from tests.hangs import HANG_S
from tests.supervisor.model_folder import write_llama
from tests.supervisor.test_worker import Told
from tests.supervisor.waiting import exists, until


def seed_striking(life: int, visit: int, lives: int = 2, visits: int = 3) -> int:
    """A seed with which a probability of a half strikes at one visit of one life alone."""
    for seed in count():
        chances = [Fault(0.5, seed, one) for one in range(lives)]
        strikes = [[chance.strikes() for _ in range(visits)] for chance in chances]
        if strikes[life][visit] and sum(map(sum, strikes)) == 1:
            return seed
    raise AssertionError


async def test_stopped_and_hanging_workers_are_replaced_until_it_is_too_much(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(step_watch, "LEAST_S", 0.3)
    monkeypatch.setenv(TEST_MODE, "1")
    monkeypatch.setenv(VARIABLE, f"worker.hang:0.5:{seed_striking(1, 1)}")
    told = Told(cpu_load(str(write_llama(tmp_path))), restarts=1)
    running = asyncio.create_task(told.worker.run())
    await until(lambda: len(told.readies) == 1)
    token = await told.first_token()
    stopped = told.worker.pid
    os.kill(stopped, signal.SIGSTOP)
    told.send_prompt()
    await until(lambda: len(told.readies) == 2)
    assert f"worker first (pid {stopped}) hangs" in caplog.text
    assert told.blamed == [True]
    assert "daemon/engine/worker/main.py" in capfd.readouterr().err, "its stacks"

    assert await told.first_token() == token
    told.send_prompt()
    await asyncio.wait_for(running, HANG_S)
    assert "daemon/engine/worker/faults.py" in capfd.readouterr().err, "where it computes for ever"
    assert told.blamed == [True, True] and len(told.replies) == 2
    assert told.story[-1] == "hopeless"
    assert told.why.startswith("worker first: no answer to a step within ")


async def test_loading_that_makes_no_progress_is_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit_s = 1.5  # ten times what lies between two of its messages: a slow machine may wait once
    monkeypatch.setattr(worker, "LOAD_STALL_S", limit_s)

    async def start_stalling(_device: str) -> StartedWorker:
        return await with_links("tests.supervisor.child_program", ["loads"])

    monkeypatch.setattr(worker, "start_worker", start_stalling)
    told = Told(cpu_load("unread"))
    began_s = asyncio.get_running_loop().time()
    await asyncio.wait_for(told.worker.run(), HANG_S)
    assert asyncio.get_running_loop().time() - began_s > 2 * limit_s, (
        "it was let live while it came on"
    )
    assert told.story == ["loading", "lost", "hopeless"]
    assert told.why == "worker first: no progress of loading in 1.5 s, after its stage 'weights'"
    assert "hangs; where it is" in caplog.text
    assert told.worker.pid == 0
    await told.worker.close()


async def test_one_that_is_stopped_while_it_loads_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence, "STOPPED_S", 0.5)
    modes = iter(["loads", "works"])

    async def start_next(_device: str) -> StartedWorker:
        return await with_links("tests.supervisor.child_program", [next(modes)])

    monkeypatch.setattr(worker, "start_worker", start_next)
    told = Told(cpu_load("unread"))
    running = asyncio.create_task(told.worker.run())
    await until(lambda: told.story == ["loading"])
    stopped = told.worker.pid
    os.kill(stopped, signal.SIGSTOP)
    await until(lambda: len(told.readies) == 1)
    assert told.worker.pid != stopped and told.blamed == [False]
    last = told.worker.pid
    os.kill(last, signal.SIGSTOP)
    monkeypatch.setattr(worker, "END_GRACE_S", 0.2)
    await told.worker.close()
    await asyncio.wait_for(running, HANG_S)
    assert not exists(last), "a stopped one does not outlive the end"
