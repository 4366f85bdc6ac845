"""Real children: their socket, their descriptors, and their end, asked for or forced."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pytest
import uvloop

from daemon.supervisor import child as child_module
from daemon.supervisor.child import Child, start_child
from tests.supervisor.waiting import exists
from tests.wire.descriptors import open_descriptors

PROGRAM = "tests.supervisor.child_program"


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before, "descriptors were left open"


async def started(*arguments: str, descriptors: tuple[int, ...] = ()) -> tuple[Child, bytes]:
    """A child that has come up, and what its socket said first."""
    child, sock = await start_child(PROGRAM, arguments, descriptors)
    sock.settimeout(10)
    with sock:
        return child, await asyncio.to_thread(sock.recv, 2)


async def test_a_child_that_ends_by_itself() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    child, said = await started("exits")
    assert said == b"up"
    assert await child.wait() == 3
    assert not child.alive and not exists(child.pid)
    child.signal(signal.SIGTERM)
    assert await child.end(1.0) == 3


async def test_a_polite_child_ends_when_asked() -> None:
    child, _ = await started("polite")
    assert child.alive
    assert await child.end(grace_s=10.0) == 7


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    child, _ = await started("stubborn")
    began_s = asyncio.get_running_loop().time()
    assert await child.end(grace_s=0.2) == -signal.SIGKILL
    assert asyncio.get_running_loop().time() - began_s >= 0.2
    assert not exists(child.pid)


async def test_a_child_that_nobody_asks_is_killed_after_the_grace() -> None:
    child, _ = await started("polite")
    assert await child.end(grace_s=0.1, ask=None) == -signal.SIGKILL


async def test_two_may_wait_for_one_end() -> None:
    child, _ = await started("polite")
    waiting = asyncio.create_task(child.wait())
    assert await child.end(grace_s=10.0) == 7
    assert await waiting == 7


async def test_descriptors_are_passed_on_and_ctrl_c_is_not() -> None:
    reading, writing = os.pipe()
    child, _ = await started("writes", str(writing), descriptors=(writing,))
    os.close(writing)
    assert await child.wait() == 0
    assert os.read(reading, 9) == b"True"  # a session of its own
    os.close(reading)


async def test_a_child_s_end_is_the_end_of_its_socket() -> None:
    child, sock = await start_child(PROGRAM, ["exits"])
    assert await child.wait() == 3
    sock.settimeout(5)
    with sock:
        assert sock.recv(9) == b"up"
        assert sock.recv(9) == b"", "no copy of its end is open here"


async def test_what_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        await start_child(PROGRAM, ["exits"])


async def test_a_child_s_wait_for_a_processor_is_counted() -> None:
    child, _ = await started("polite")
    assert 0.0 <= child.starved_s() < 60.0
    assert await child.end(grace_s=10.0) == 7
    assert child.starved_s() == 0.0, "nobody counts for the dead"


async def test_a_stopped_child_is_killed_after_the_grace() -> None:
    child, _ = await started("polite")
    os.kill(child.pid, signal.SIGSTOP)
    assert await child.end(grace_s=0.2) == -signal.SIGKILL
    assert not exists(child.pid)


async def test_one_that_the_kernel_does_not_let_end_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a call of a driver that does not answer, where no signal ends a process."""
    monkeypatch.setattr(child_module, "KILLED_S", 0.1)
    child, _ = await started("stubborn")
    with monkeypatch.context() as patch:
        patch.setattr(Child, "signal", lambda _child, _number: None)
        assert await child.end(grace_s=0.0) == -signal.SIGKILL
    assert f"process {child.pid} was killed, and the kernel does not let it end" in caplog.text
    assert await child.end(grace_s=0.0) == -signal.SIGKILL
