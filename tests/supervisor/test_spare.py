"""A spare worker: ready ahead, taken when a worker dies, and never in the way of an end."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.supervisor import silence as silence_module
from daemon.supervisor import spare as spare_module
from daemon.supervisor import worker as worker_module
from daemon.supervisor.restarts import Restarts
from daemon.supervisor.spare import Spare, StartedWorker, with_links
from tests.engine.process import cpu_load
from tests.hangs import HANG_S
from tests.supervisor.model_folder import write_llama
from tests.supervisor.test_worker import Told
from tests.supervisor.waiting import exists, until
from tests.wire.descriptors import open_descriptors


def policies(pid: int) -> set[int]:
    """The scheduling classes of a process's threads."""
    threads = [int(one.name) for one in Path(f"/proc/{pid}/task").iterdir()]
    return {os.sched_getscheduler(thread) for thread in threads}


def own_mb(pid: int) -> float:
    """Memory of a process that no other has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


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
    await until(lambda: spare.pid > 0)
    kept = spare.pid
    assert kept != told.worker.pid
    await spare.prepare()
    assert spare.pid == kept, "one is enough"
    await until(lambda: len(told.readies) == 1)
    token = await told.first_token()
    await until(lambda: spare.ready)
    assert policies(kept) == {os.SCHED_OTHER}, "what computes is not of the idle class"
    assert own_mb(kept) < 60, "its imports are those of the worker that left it"
    assert masks(told.worker.pid) == {frozenset({last_cpu})}, "a worker stays on its cores"

    os.kill(told.worker.pid, signal.SIGKILL)
    await until(lambda: len(told.readies) == 2)
    assert told.worker.pid == kept and spare.pid not in (0, kept), "it has left another"
    last = spare.pid
    assert await told.first_token() == token, "it computes as its predecessor did"
    assert masks(kept) == {frozenset({last_cpu})}, "and on its predecessor's cores"
    assert await told.worker.close() == 0
    await asyncio.wait_for(running, HANG_S)
    await spare.close()
    assert not exists(kept) and not exists(last)
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


def at_work(_device: str, *_flags: str) -> Awaitable[StartedWorker]:
    """A process that says what a worker does, and imports and loads nothing."""
    return with_links("tests.supervisor.child_program", ["works"])


async def test_a_spare_that_dies_or_is_stopped_is_not_taken_but_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spare_module, "start_worker", at_work)
    monkeypatch.setattr(spare_module, "HEARS_S", 0.5)
    before = open_descriptors()
    spare = Spare("cpu")
    assert spare.take() is None and not spare.ready
    await spare.prepare()
    killed = spare.pid
    assert spare.take() is None and spare.pid == killed, "it has not said that it is ready"
    await until(lambda: spare.ready)
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)  # dead, and nobody here has heard of it
    assert not spare.ready and spare.take() is None
    await until(lambda: spare.pid not in (0, killed))
    await until(lambda: spare.ready)

    stopped = spare.pid
    os.kill(stopped, signal.SIGSTOP)
    await until(lambda: spare.pid not in (0, stopped))
    assert f"the spare worker (pid {stopped}) hangs" in caplog.text
    await until(lambda: spare.ready)
    assert not exists(stopped)
    last = spare.pid
    await spare.close()
    assert not exists(last)
    await spare.prepare()
    assert spare.pid == 0, "closed is closed"
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_no_worker_leaves_a_spare_while_one_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(device: str, *flags: str) -> StartedWorker:
        begun.set()
        await go_on.wait()
        return await at_work(device, *flags)

    before = open_descriptors()
    monkeypatch.setattr(spare_module, "start_worker", slowly)
    spare, worker = Spare("cpu"), await at_work("cpu")
    preparing = asyncio.create_task(spare.prepare())
    await begun.wait()
    assert not spare.asks(worker, "cpu")
    go_on.set()
    await preparing
    await until(lambda: spare.ready)
    await spare.close()
    worker.hang_up()
    await worker.child.end(0.0, signal.SIGKILL)
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_a_spare_that_was_asked_a_moment_ago_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine each answer takes its time: a new process would take longer."""
    monkeypatch.setattr(spare_module, "start_worker", at_work)
    monkeypatch.setattr(silence_module, "MOMENT_S", 3600.0)
    spare: Any = Spare("cpu")
    await spare.prepare()
    await until(lambda: spare.ready)
    os.kill(spare.pid, signal.SIGSTOP)
    await until(lambda: spare._held._pulse._silence.expecting)
    assert spare.ready
    monkeypatch.setattr(silence_module, "MOMENT_S", 0.0)
    assert not spare.ready and spare.take() is None, "it owes an answer for too long"
    await spare.close()


async def test_one_that_dies_again_and_again_waits_for_the_next_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []

    async def dies(_device: str, *_flags: str) -> StartedWorker:
        started.append(len(started))
        return await with_links("tests.supervisor.child_program", ["exits"])

    monkeypatch.setattr(spare_module, "start_worker", dies)
    spare: Any = Spare("cpu")
    spare._restarts = Restarts(2, 3600.0)
    await spare.prepare()
    await until(lambda: caplog.text.count("is gone") == 3)
    await asyncio.sleep(0.1)
    assert len(started) == 3
    await spare.prepare()
    await until(lambda: caplog.text.count("is gone") == 4)
    assert len(started) == 4
    await spare.close()


async def test_a_spare_stopped_since_it_was_last_asked_costs_seconds_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spare_module, "start_worker", at_work)
    monkeypatch.setattr(worker_module, "start_worker", at_work)
    monkeypatch.setattr(worker_module, "HEARS_S", 0.5)
    spare = Spare("cpu")
    told = Told(cpu_load("unread"), spare=spare)
    running = asyncio.create_task(told.worker.run())
    await until(lambda: len(told.readies) == 1)
    await spare.prepare()
    await until(lambda: spare.ready)
    stopped = spare.pid
    os.kill(stopped, signal.SIGSTOP)
    os.kill(told.worker.pid, signal.SIGKILL)
    await until(lambda: len(told.readies) == 2)
    assert not exists(stopped) and told.story.count("lost") in (1, 2)
    await told.worker.close()
    await asyncio.wait_for(running, HANG_S)
    await spare.close()


async def test_closing_while_a_spare_is_being_started() -> None:
    spare = Spare("cpu")
    preparing = asyncio.create_task(spare.prepare())
    await asyncio.sleep(0)
    await spare.close()
    await preparing
    assert spare.pid == 0
