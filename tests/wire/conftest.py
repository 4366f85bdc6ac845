"""Every test of the wire gives back the descriptors it took."""

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tests.wire.descriptors import open_descriptors

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
"""The daemon's loop, and the one that tools may use."""


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.fixture(autouse=True, scope="session")
def used_loops() -> None:
    """A process's first loop of a kind opens descriptors that stay."""
    for new_loop in LOOPS.values():
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.sleep(0))


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before, "descriptors were left open"


@pytest.fixture
def pair(no_leaks: None) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a fresh socketpair; closed afterwards, even if closed before."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    yield ends
    for end in ends:
        end.close()
