"""Real processes that are late: which of them go on."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from daemon.supervisor.api import LoopProgress
from daemon.supervisor.child import Child
from daemon.supervisor.patience import LOOK_S, TIMES, Patience
from tests.supervisor.test_child import started


@pytest_asyncio.fixture
async def child(request: pytest.FixtureRequest) -> AsyncIterator[Child]:
    one, _ = await started(request.param)
    yield one
    await one.end(0.0, None)


async def looks(child: Child, number: int) -> list[bool]:
    progress = LoopProgress(child)
    progress.moves()
    found = []
    for _ in range(number):
        await asyncio.sleep(LOOK_S)
        found.append(progress.moves())
    return found


@pytest.mark.parametrize("child", ["shares"], indirect=True)
async def test_one_that_shares_the_interpreter_goes_on(child: Child) -> None:
    while not all(await looks(child, 2)):  # a starved machine may let it wait
        pass
    progress = LoopProgress(child)
    before_s = progress.excused_s()
    await asyncio.sleep(LOOK_S)
    assert progress.excused_s() - before_s > LOOK_S / 2
    os.kill(child.pid, signal.SIGSTOP)
    await looks(child, 1)
    assert await looks(child, 2) == [False, False]


@pytest.mark.parametrize("child", ["spins"], indirect=True)
async def test_one_that_computes_for_ever_does_not(child: Child) -> None:
    await asyncio.sleep(LOOK_S)
    assert await looks(child, 3) == [False] * 3


@pytest.mark.parametrize("child", ["locks"], indirect=True)
async def test_one_that_waits_for_a_lock_for_ever_hardly_does_and_is_given_up(child: Child) -> None:
    """It asks for the lock again and again, which a busy machine may take for work now and then."""
    await asyncio.sleep(LOOK_S)
    assert sum(await looks(child, 7)) <= 2
    progress, patience, limit_s = LoopProgress(child), Patience(), 2 * LOOK_S
    patience.begin(time.monotonic())
    for _ in range(int(TIMES * limit_s / LOOK_S)):
        await asyncio.sleep(LOOK_S)
        if patience.runs_out(time.monotonic(), limit_s, progress.excused_s):
            return
    raise AssertionError("it is waited for without end")


@pytest.mark.parametrize("child", ["polite"], indirect=True)
async def test_nobody_counts_for_the_dead(child: Child) -> None:
    await child.end(10.0)
    assert child.first_thread() == (0.0, 0) and not LoopProgress(child).moves()
