"""A spare worker: ready ahead, taken when a worker dies, and never in the way of an end."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.supervisor.spare import Spare
from tests.engine.process import cpu_load
from tests.supervisor.model_folder import write_llama
from tests.supervisor.test_worker import Told
from tests.supervisor.waiting import exists, until
from tests.wire.descriptors import open_descriptors


def policies(pid: int) -> set[int]:
    """The scheduling classes of a process's threads."""
    threads = [int(one.name) for one in Path(f"/proc/{pid}/task").iterdir()]
    return {os.sched_getscheduler(thread) for thread in threads}


def masks(pid: int) -> set[frozenset[int]]:
    """The CPUs that a process's threads may use."""
    threads = [int(one.name) for one in Path(f"/proc/{pid}/task").iterdir()]
    return {frozenset(os.sched_getaffinity(thread)) for thread in threads}


@pytest.fixture
def last_cpu() -> Iterator[int]:
    """One CPU of several, if the machine has several; the suites run on a part of them."""
    given = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    yield max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, given)


async def test_a_killed_worker_s_place_is_taken_by_the_spare(tmp_path: Path, last_cpu: int) -> None:
    before = open_descriptors()
    spare = Spare("cpu")
    load = cpu_load(str(write_llama(tmp_path)), num_threads=1, cpus=(last_cpu,))
    told = Told(load, spare=spare)
    running = asyncio.create_task(told.worker.run())
    await until(lambda: told.worker.pid > 0)
    await spare.prepare()  # the daemon waits for the first to be ready; here two load at once
    kept = spare.pid
    assert kept and kept != told.worker.pid
    await spare.prepare()
    assert spare.pid == kept, "one is enough"
    await until(lambda: len(told.readies) == 1)
    token = await told.first_token()
    await until(lambda: spare.ready)
    assert policies(kept) == {os.SCHED_OTHER}, "what computes is not of the idle class"
    assert masks(told.worker.pid) == {frozenset({last_cpu})}, "a worker stays on its cores"

    os.kill(told.worker.pid, signal.SIGKILL)
    await until(lambda: len(told.readies) == 2)
    assert told.worker.pid == kept and spare.pid == 0
    assert await told.first_token() == token, "it computes as its predecessor did"
    assert masks(kept) == {frozenset({last_cpu})}, "and on its predecessor's cores"
    assert await told.worker.close() == 0
    await asyncio.wait_for(running, 5)
    await spare.close()
    assert not exists(kept)
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_a_dead_spare_is_not_taken_but_replaced() -> None:
    before = open_descriptors()
    spare = Spare("cpu")
    assert spare.take() is None and not spare.ready
    await spare.prepare()
    first = spare.pid
    assert spare.take() is None and spare.pid == first, "it has not imported anything yet"
    os.kill(first, signal.SIGKILL)
    await until(lambda: spare.pid == 0)
    assert spare.take() is None
    await spare.prepare()
    second = spare.pid
    assert second not in (0, first)
    await spare.close()
    assert not exists(second)
    await spare.prepare()
    assert spare.pid == 0, "closed is closed"
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_one_that_has_just_died_is_not_taken_although_it_said_that_it_is_done() -> None:
    spare: Any = Spare("cpu")
    ours, theirs = socket.socketpair()
    spare._held = SimpleNamespace(pid=1, alive=True), ours  # its parent has not heard of its death
    assert not spare.ready
    theirs.send(b"done")
    assert spare.ready
    theirs.close()
    assert not spare.ready and spare.take() is None
    ours.close()


async def test_closing_while_a_spare_is_being_started() -> None:
    spare = Spare("cpu")
    preparing = asyncio.create_task(spare.prepare())
    await asyncio.sleep(0)
    await spare.close()
    await preparing
    assert spare.pid == 0
