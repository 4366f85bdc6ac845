"""The real API process: answering, replaced when it dies or hangs, given up, and ended."""

import asyncio
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from daemon.runtime.api_link import ApiLink
from daemon.runtime.listen import listen, url_of
from daemon.runtime.token_store import TokenStore
from daemon.supervisor import api as api_module
from daemon.supervisor import silence
from daemon.supervisor.api import ApiProcess
from tests.hangs import HANG_S
from tests.supervisor.waiting import exists, until
from tests.wire.descriptors import open_descriptors


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as sock:
        yield sock


class Told:
    """An API process, and what its supervisor told."""

    def __init__(self, *, kill: bool = False) -> None:
        self.generations: list[int] = []
        self.why = ""
        self._kill = kill
        self.api = ApiProcess('{"model": "tiny"}', self._connect, self._hopeless)
        self.link = ApiLink(TokenStore(4), lambda _event: None, self.api.lives)

    def _connect(self, sock: socket.socket, generation: int) -> ApiLink:
        self.generations.append(generation)
        self.link.connect(sock, generation)
        if self._kill:
            os.kill(self.api.pid, signal.SIGKILL)
        return self.link

    def _hopeless(self, why: str) -> None:
        self.why = why

    def close(self) -> None:
        self.link.hang_up()


def health(url: str) -> int:
    with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
        return int(response.status)


async def test_it_answers_is_replaced_and_ends(listener: socket.socket) -> None:
    before = open_descriptors()
    told = Told()
    running = asyncio.create_task(told.api.run(listener))
    assert await asyncio.to_thread(health, url_of(listener)) == 200
    await until(lambda: told.api.up)
    first = told.api.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: told.generations == [0, 1])
    assert told.api.pid != first and not told.api.up and told.api.num_deaths == 1
    assert await asyncio.to_thread(health, url_of(listener)) == 200, "on the same address"
    await told.api.close()
    await asyncio.wait_for(running, HANG_S)
    assert told.api.pid == 0 and not told.why
    assert told.generations == [0, 1] and told.api.num_deaths == 1
    told.close()
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


async def test_a_stopped_one_is_found_and_replaced(
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(silence, "STOPPED_S", 0.5)
    monkeypatch.setattr(api_module, "STACKS_S", HANG_S)  # it ends once its stacks are written
    told = Told()
    running = asyncio.create_task(told.api.run(listener))
    await until(lambda: told.api.up)
    stopped = told.api.pid
    os.kill(stopped, signal.SIGSTOP)
    await until(lambda: told.generations == [0, 1])
    assert not exists(stopped)
    assert f"the API process (pid {stopped}) hangs" in caplog.text
    assert "daemon/api/front/process.py" in capfd.readouterr().err, "its stacks"
    os.kill(told.api.pid, signal.SIGSTOP)  # before it has answered once
    await until(lambda: told.generations == [0, 1, 2])
    assert await asyncio.to_thread(health, url_of(listener)) == 200
    monkeypatch.setattr(api_module, "END_GRACE_S", 0.3)
    os.kill(told.api.pid, signal.SIGSTOP)
    last = told.api.pid
    await told.api.close()
    await asyncio.wait_for(running, HANG_S)
    assert not exists(last), "a stopped one does not outlive the end"
    told.close()


async def test_one_that_loads_may_be_silent_for_longer(listener: socket.socket) -> None:
    told: Any = Told()
    running = asyncio.create_task(told.api.run(listener))
    await until(lambda: told.api.up)
    assert told.api._pulse.limit_s == api_module.LOADS_S
    told.api.lives(settled=True)
    assert told.api._pulse.limit_s == api_module.HEARS_S
    await told.api.close()
    await asyncio.wait_for(running, HANG_S)
    told.close()


async def test_one_that_dies_again_and_again_is_given_up(listener: socket.socket) -> None:
    told = Told(kill=True)
    await asyncio.wait_for(told.api.run(listener), HANG_S)
    assert told.generations == list(range(6))
    assert told.why == "the API process ended with status -9, again and again"
    told.close()


async def test_closing_while_it_is_being_started(listener: socket.socket) -> None:
    told = Told()
    running = asyncio.create_task(told.api.run(listener))
    await asyncio.sleep(0)
    await told.api.close()
    await asyncio.wait_for(running, HANG_S)
    assert told.api.pid == 0 and not told.generations
