"""The node's end of a worker, called as Ray calls it; the worker computes a toy."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from daemon import __version__
from daemon.cluster.direct import DirectConnection
from daemon.cluster.host import Listen, WorkerHost
from daemon.protocol.worker import Alive, Exited, FromWorker, Loading, Ready, Reply, Shutdown
from daemon.wire.columns import decoder, encoder
from daemon.wire.frames import FrameReader, inline_frame
from daemon.wire.pulse import Ping
from tests.cluster.hosts import begun, connected
from tests.engine.driver import Driver
from tests.engine.process import cpu_load
from tests.supervisor.model_folder import write_llama

PROMPT = [5, 17, 90, 33, 8]


class Begun:
    """A host that has begun, and the proxy's end of its connection."""

    def __init__(self, beside: ThreadPoolExecutor) -> None:
        self.host = WorkerHost()
        assert begun(self.host) == ""
        self.connection: DirectConnection
        self.end: Future[bytes]
        self.connection, self.end = connected(self.host, beside)

    def give(self, *messages: Any) -> None:
        """Send messages."""
        for message in messages:
            self.connection.send(inline_frame(encoder().encode(message)))

    def told(self) -> Iterator[FromWorker]:
        """All that comes until nothing does, and what is said of the end."""
        reader, decode = FrameReader(), decoder(FromWorker).decode
        while frames := self.connection.receive():
            reader.feed(frames)
            yield from map(decode, reader.payloads())
        reader.feed(self.end.result())
        yield from map(decode, reader.payloads())


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("llama")))


def test_a_worker_s_life_on_a_node(folder: str, beside: ThreadPoolExecutor) -> None:
    node, plans = Begun(beside), Driver(16, list(range(64)))
    told = node.told()
    assert isinstance(next(told), Loading)
    node.give(Ping(), cpu_load(folder))
    plan = plans.plan([(plans.add(0, PROMPT), len(PROMPT))])
    node.give(plan)
    assert isinstance(next(told), Alive)
    ready, reply = next(told), next(told)
    assert isinstance(ready, Ready) and isinstance(reply, Reply) and len(reply.tokens) == 1
    node.give(Shutdown())
    assert list(told) == [Exited(0)]


def test_frames_of_any_size_pass(folder: str, beside: ThreadPoolExecutor) -> None:
    node, plans = Begun(beside), Driver(16, list(range(4096)))
    prompt = [1 + number % 60 for number in range(40_000)]
    plan = plans.plan([(plans.add(0, prompt), len(prompt))])
    assert len(encoder().encode(plan)) > 100_000
    node.give(cpu_load(folder, num_blocks=4096, max_len=50_000), plan, Shutdown())
    assert [type(each) for each in node.told()] == [Loading, Ready, Reply, Exited]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_the_exit_status_is_told(number: signal.Signals, beside: ThreadPoolExecutor) -> None:
    node = Begun(beside)
    assert node.host._process is not None
    waiting = threading.Timer(0.1, os.kill, (node.host._process.pid, number))
    waiting.start()
    assert list(node.told())[-1] == Exited(-number)


def test_a_worker_whose_proxy_is_gone_ends(beside: ThreadPoolExecutor) -> None:
    node = Begun(beside)
    node.connection.close()
    assert list(node.told())[-1] == Exited(0)


def test_an_address_that_is_not_the_node_s_is_told() -> None:
    host = WorkerHost()
    order = msgspec.msgpack.encode(Listen("192.0.2.1"))
    assert "it cannot listen on 192.0.2.1: " in msgspec.msgpack.decode(host.listen(order), type=str)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may undo a nice value")
def test_a_worker_is_not_nice_because_its_actor_is() -> None:
    host, found = WorkerHost(), list[int]()

    def begin() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 15)
        begun(host)
        assert host._process is not None
        found.append(os.getpriority(os.PRIO_PROCESS, host._process.pid))
        host._process.kill()

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert found == [0]


def test_another_version_is_refused() -> None:
    host = WorkerHost()
    assert begun(host, version="0.0.0") == f"llmd is {__version__} there, and 0.0.0 here"
