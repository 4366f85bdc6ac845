"""Every test of the wire gives back the descriptors it took."""

import asyncio
import socket
from collections.abc import Iterator

import pytest
import uvloop

from tests.wire.descriptors import open_descriptors


@pytest.fixture(params=["uvloop", "asyncio"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """The daemon's loop, and the one that tools may use."""
    if request.param == "uvloop":
        return uvloop.EventLoopPolicy()
    return asyncio.DefaultEventLoopPolicy()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before, "descriptors were left open"


@pytest.fixture
def pair(no_leaks: None) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a fresh socketpair; closed afterwards, whoever closed them before."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    yield ends
    for end in ends:
        end.close()
