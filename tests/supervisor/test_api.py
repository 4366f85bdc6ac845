"""The real API process: answering, replaced when it dies, given up, and ended."""

import asyncio
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator

import pytest

from daemon.runtime.listen import listen, url_of
from daemon.supervisor.api import ApiProcess
from tests.supervisor.waiting import until
from tests.wire.descriptors import open_descriptors


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as sock:
        yield sock


class Told:
    """An API process, and what its supervisor told."""

    def __init__(self, listener: socket.socket, *, kill: bool = False) -> None:
        self.generations: list[int] = []
        self.why = ""
        self._kill = kill
        self._sockets: list[socket.socket] = []
        self.api = ApiProcess(listener, '{"model": "tiny"}', self._connect, self._hopeless)

    def _connect(self, sock: socket.socket, generation: int) -> None:
        self.generations.append(generation)
        self._sockets.append(sock)
        if self._kill:
            os.kill(self.api.pid, signal.SIGKILL)

    def _hopeless(self, why: str) -> None:
        self.why = why

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def health(url: str) -> int:
    with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
        return int(response.status)


async def test_it_answers_is_replaced_and_ends(listener: socket.socket) -> None:
    before = open_descriptors()
    told = Told(listener)
    running = asyncio.create_task(told.api.run())
    assert await asyncio.to_thread(health, url_of(listener)) == 200
    first = told.api.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: told.generations == [0, 1])
    assert told.api.pid != first
    assert await asyncio.to_thread(health, url_of(listener)) == 200, "on the same address"
    await told.api.close()
    await asyncio.wait_for(running, 5)
    assert told.api.pid == 0 and not told.why
    assert told.generations == [0, 1]
    told.close()
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_one_that_dies_again_and_again_is_given_up(listener: socket.socket) -> None:
    told = Told(listener, kill=True)
    await asyncio.wait_for(told.api.run(), 20)
    assert told.generations == list(range(6))
    assert told.why == "the API process ended with status -9, again and again"
    told.close()


async def test_closing_while_it_is_being_started(listener: socket.socket) -> None:
    told = Told(listener)
    running = asyncio.create_task(told.api.run())
    await asyncio.sleep(0)
    await told.api.close()
    await asyncio.wait_for(running, 5)
    assert told.api.pid == 0 and not told.generations
