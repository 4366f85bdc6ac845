"""Several ranks of one instance under their supervisor, as programs without a model."""

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest

from daemon.supervisor import ranks, silence, step_watch, worker
from daemon.supervisor.spare import StartedWorker, with_links
from tests.engine.driver import Driver
from tests.engine.process import cpu_load
from tests.hangs import HANG_S
from tests.supervisor.test_worker import Told
from tests.supervisor.waiting import exists, until


def starts(monkeypatch: pytest.MonkeyPatch, modes: Sequence[str]) -> list[int]:
    """Have the first rank and the other start as these programs in turn; all their process ids."""
    pids, going = list[int](), iter(modes)

    async def start_next(_device: str) -> StartedWorker:
        started = await with_links("tests.supervisor.child_program", [next(going)])
        pids.append(started.child.pid)
        return started

    monkeypatch.setattr(worker, "start_worker", start_next)
    monkeypatch.setattr(ranks, "start_worker", start_next)
    return pids


def two_ranks() -> Told:
    return Told(cpu_load("unread"), other_loads=[cpu_load("unread", rank=1, world_size=2)])


async def test_a_rank_that_is_stopped_while_it_loads_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence, "STOPPED_S", 0.5)
    pids = starts(monkeypatch, ["works", "loads", "works", "works"])
    told = two_ranks()
    running = asyncio.create_task(told.worker.run())
    await until(lambda: len(pids) == 2 and bool(told.story))
    os.kill(pids[1], signal.SIGSTOP)
    await until(lambda: len(told.readies) == 1 or running.done())
    assert told.readies, told.why
    assert told.blamed == [False] and not any(map(exists, pids[:2]))
    await told.worker.close()
    await asyncio.wait_for(running, HANG_S)


@pytest.mark.parametrize("lost", [False, True], ids=["serving", "lost"])
async def test_no_rank_outlives_the_end(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they serve, or one of them was lost a moment before. Nobody waits for a stopped one,
    which would not hear that it shall end.
    """
    monkeypatch.setattr(worker, "END_GRACE_S", 2 * HANG_S)
    pids = starts(monkeypatch, ["works", "works"])
    told = two_ranks()
    running = asyncio.create_task(told.worker.run())
    await until(lambda: len(told.readies) == 1)
    assert [rank.pid for rank in told.worker.ranks] == pids
    assert all(rank.state == "ready" and rank.memory_bytes > 0 for rank in told.worker.ranks)
    os.kill(pids[1], signal.SIGSTOP)
    await until(lambda: told.worker.is_stopped)
    assert [rank.state for rank in told.worker.ranks] == ["ready", "stopped"]
    if lost:
        os.kill(pids[0], signal.SIGKILL)
        await asyncio.sleep(0)
    await asyncio.wait_for(told.worker.close(), HANG_S)
    assert not any(map(exists, pids)), "a stopped one does not outlive the end"
    await asyncio.wait_for(running, HANG_S)


async def test_copies_that_one_rank_never_ends_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step waits for them: the first rank has answered."""
    monkeypatch.setattr(step_watch, "LEAST_S", 0.5)
    pids = starts(monkeypatch, ["copies", "works", "works", "works"])
    told = two_ranks()
    running = asyncio.create_task(told.worker.run())
    await until(lambda: len(told.readies) == 1)
    plans = Driver(16, [])
    plans.outs = [(3, 1)]
    told.worker.send(plans.plan([]))
    await until(lambda: len(told.readies) == 2 or running.done())
    assert told.story.count("reply") == 1 and not told.copies
    assert told.blamed == [True] and not any(map(exists, pids[:2]))
    await told.worker.close()
    await asyncio.wait_for(running, HANG_S)


async def test_a_rank_whose_start_the_end_overtakes_does_not_outlive_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids, may_start = starts(monkeypatch, ["works", "works"]), asyncio.Event()
    start_next = ranks.start_worker

    async def start_later(device: str) -> StartedWorker:
        await may_start.wait()
        return await start_next(device)

    monkeypatch.setattr(ranks, "start_worker", start_later)
    told = two_ranks()
    running = asyncio.create_task(told.worker.run())
    await until(lambda: len(pids) == 1)
    await asyncio.wait_for(told.worker.close(), HANG_S)
    may_start.set()
    await asyncio.wait_for(running, HANG_S)
    assert len(pids) == 2 and not any(map(exists, pids))
