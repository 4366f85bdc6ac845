"""The node's end of a worker, called as Ray calls it; the worker computes a toy."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from daemon import __version__
from daemon.cluster.host import NUMBER_BYTES, Begin, WorkerHost
from daemon.protocol.worker import Alive, Exited, FromWorker, Loading, Ready, Reply, Shutdown
from daemon.wire.columns import decoder, encoder
from daemon.wire.frames import FrameReader, inline_frame
from daemon.wire.pulse import Ping
from tests.engine.driver import Driver
from tests.engine.process import cpu_load
from tests.supervisor.model_folder import write_llama

TOY = "tests.chaos.worker"
PROMPT = [5, 17, 90, 33, 8]


def numbered(number: int, *messages: Any) -> bytes:
    """The argument of a `give`."""
    frames = b"".join(inline_frame(encoder().encode(message)) for message in messages)
    return number.to_bytes(NUMBER_BYTES, "little") + frames


def begun(host: WorkerHost, **fields: str) -> str:
    begin = msgspec.structs.replace(Begin(__version__, TOY, "cpu"), **fields)
    return host.begin(msgspec.msgpack.encode(begin)).decode()


def messages_of(host: WorkerHost) -> Iterator[FromWorker]:
    """All that comes until nothing does."""
    reader, decode = FrameReader(), decoder(FromWorker).decode
    while frames := host.take():
        reader.feed(frames)
        yield from map(decode, reader.payloads())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("llama")))


def test_a_worker_s_life_on_a_node(folder: str) -> None:
    host, plans = WorkerHost(), Driver(16, list(range(64)))
    assert begun(host) == ""
    told = messages_of(host)
    assert isinstance(next(told), Loading)
    plan = plans.plan([(plans.add(0, PROMPT), len(PROMPT))])
    # As Ray may call them: the plan comes before the load.
    host.give(numbered(2, plan))
    host.give(numbered(0, Ping()))
    host.give(numbered(1, cpu_load(folder)))
    assert isinstance(next(told), Alive)
    ready, reply = next(told), next(told)
    assert isinstance(ready, Ready) and isinstance(reply, Reply) and len(reply.tokens) == 1
    host.give(numbered(3, Shutdown()))
    assert list(told) == [Exited(0)]
    host.give(numbered(4, plan))  # it comes too late, and is no error


def test_frames_of_any_size_pass(folder: str) -> None:
    host, plans = WorkerHost(), Driver(16, list(range(4096)))
    assert begun(host) == ""
    prompt = [1 + number % 60 for number in range(40_000)]
    plan = plans.plan([(plans.add(0, prompt), len(prompt))])
    assert len(encoder().encode(plan)) > 100_000
    host.give(numbered(0, cpu_load(folder, num_blocks=4096, max_len=50_000), plan, Shutdown()))
    assert [type(each) for each in messages_of(host)] == [Loading, Ready, Reply, Exited]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_the_exit_status_is_told(number: signal.Signals) -> None:
    host = WorkerHost()
    assert begun(host) == ""
    assert host._process is not None
    waiting = threading.Timer(0.1, os.kill, (host._process.pid, number))
    waiting.start()
    assert list(messages_of(host))[-1] == Exited(-number)


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
    assert host.take() == b""
