"""What signals mean to a daemon, and what it says while it starts."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from daemon.base import notify
from daemon.config.core_shares import CoreShare
from daemon.config.cuda import Devices
from daemon.config.load import Loaded, load
from daemon.config.pool import plan_pool
from daemon.config.schema import Config, InstanceSpec
from daemon.core.instance.instance import WorkerState
from daemon.models.shape import ModelError
from daemon.protocol.api import RequestRejected, Serving
from daemon.protocol.worker import Loading
from daemon.runtime import daemon as daemon_module
from daemon.runtime import life
from daemon.runtime.daemon import Daemon
from daemon.runtime.start_times import StartTimes
from daemon.runtime.workers import Workers
from daemon.supervisor.early import EarlyWorker
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE
from tests.hangs import HANG_S
from tests.runtime.ends import SERVED, ApiEnd, House, generate, until


async def test_sighup_reads_the_file_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMD_LOG_LEVEL", "info")
    file = tmp_path / "llmd.toml"
    file.write_text("")

    def read() -> Loaded:
        return load(file)

    daemon = Daemon(read(), read)
    daemon.life.take_signals(daemon.operations.hang_up)
    file.write_text("[daemon]\ndrain_s = 1.0\n")
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: daemon.parts.config.daemon.drain_s == 1.0)
    assert not daemon.life.stop.is_set()
    await until(lambda: not daemon.life._tasks)  # nothing of it is kept
    _leave_signals()


async def test_without_a_file_sighup_is_a_closed_terminal() -> None:
    daemon = Daemon(load(), load)
    daemon.life.take_signals(None)
    os.kill(os.getpid(), signal.SIGHUP)
    await until(daemon.life.stop.is_set)
    assert not daemon.life.hurry.is_set()
    _leave_signals()


async def test_a_long_conversion_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    converted = threading.Event()

    def find_model(_config: object, progress: object) -> None:
        converted.wait(5)
        raise ModelError("no model after all")

    monkeypatch.setattr(notify, "starting", told.append)
    monkeypatch.setattr(daemon_module, "find_model", find_model)
    monkeypatch.setattr(life, "PREPARING_S", 0.01)
    preparing = asyncio.create_task(Daemon(load(), load).prepare(""))
    try:
        await until(lambda: len(told) > 3)
    finally:
        converted.set()
    with pytest.raises(ModelError):
        await preparing
    assert set(told) == {"preparing the model"}


async def test_a_slow_conversion_is_no_silent_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the API process has not heard for long of, it says is stuck."""
    converted = threading.Event()

    def find_model(_config: object, progress: object) -> None:
        converted.wait(5)
        raise ModelError("no model after all")

    monkeypatch.setattr(daemon_module, "find_model", find_model)
    monkeypatch.setattr(daemon_module, "SERVING_INTERVAL_S", 0.01)
    daemon = Daemon(load(), load)
    ours, theirs = socket.socketpair()
    daemon.parts.link.connect(ours, 0)
    api = ApiEnd(theirs)
    preparing = asyncio.create_task(daemon.prepare(""))
    try:
        await until(lambda: len(api.of(Serving)) > 3)
    finally:
        converted.set()
    with pytest.raises(ModelError):
        await preparing
    await daemon.life.close()
    daemon.parts.link.hang_up()
    api.channel.close()


async def test_a_request_before_there_is_a_core_is_refused_and_forgotten() -> None:
    daemon = Daemon(load(), load)
    ours, theirs = socket.socketpair()
    daemon.parts.link.connect(ours, 0)
    api = ApiEnd(theirs)
    api.send(generate(1, [1, 2, 3], n=2))
    await until(lambda: bool(api.of(RequestRejected)))
    assert api.of(RequestRejected) == [RequestRejected(1, "not_ready", "starting", 1.0)]
    assert not daemon.parts.link._live
    daemon.parts.link.hang_up()
    api.channel.close()


async def test_a_worker_that_is_given_up_is_said_to_load_no_more(
    house_of: Callable[..., House],
) -> None:
    house = house_of(instances=2)
    status = house.status(Config())
    cores = CoreShare(1, (0,))
    specs = InstanceSpec("cpu", "mixed", "first"), InstanceSpec("cpu", "mixed", "second")
    pools = tuple(plan_pool(load().config, SERVED.shape, spec, Devices()) for spec in specs)
    model = msgspec.structs.replace(SERVED, instances=specs, pools=pools, cores=(cores, cores))
    workers = Workers(
        *(status._parts, model, StartTimes(Path("none")), house.runtime, status),
        EarlyWorker("cpu"),
    )
    workers._loading(0, Loading("weights", 0.1))
    workers._lost(0, False)
    workers._hopeless(0, "no such file")
    assert [one.state for one in status.snapshot().instances] == ["given up", "loading"]
    workers._loading(1, Loading("warm-up", 0.9))
    assert status.sentence == "loading: warm-up 90%" and not status._parts.life.stop.is_set()
    workers._lost(1, False)
    workers._hopeless(1, "no such file either")
    assert status._parts.life.fault == "no such file either"


async def test_the_worker_of_an_asleep_instance_starts_when_it_is_woken(
    house_of: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TEST_MODE, "1")
    monkeypatch.setenv(WORKER, "tests.runtime.ready_worker")
    house = house_of(instances=2)
    status = house.status(Config())
    cores = CoreShare(1, (0,))
    specs = (
        InstanceSpec("cpu", "mixed", "first"),
        InstanceSpec("cpu", "mixed", "second", asleep=True),
    )
    pools = tuple(plan_pool(load().config, SERVED.shape, spec, Devices()) for spec in specs)
    model = msgspec.structs.replace(SERVED, instances=specs, pools=pools, cores=(cores, cores))
    workers = Workers(
        *(status._parts, model, StartTimes(Path("none")), house.runtime, status),
        EarlyWorker("cpu"),
    )
    instances = house.runtime.core.instances
    workers.start()
    await until(lambda: instances[0].state is WorkerState.READY)
    assert workers.of(1).pid == 0
    workers.wake(1)
    await until(lambda: instances[1].state is WorkerState.READY)
    assert workers.of(1).pid
    await workers.close()
    await status._parts.life.close()


async def test_answers_that_a_hopeless_daemon_has_under_way_are_cut_off_at_once(
    house_of: Callable[..., House],
) -> None:
    house = house_of()
    house.ready()
    house.paused = True
    house.api.send(generate(1, [1, 2, 3]))
    await until(lambda: bool(house.plans))
    daemon = Daemon(load(), load)
    daemon.parts.link = house.link
    draining = asyncio.create_task(daemon._drain(house.runtime))
    await until(lambda: house.runtime.core.draining)
    assert not draining.done(), "an answer is under way"
    daemon.life.hopeless("no worker is left")
    await asyncio.wait_for(draining, HANG_S)
    await house.ended(1)
    assert not house.link._live


def _leave_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_name_that_is_looked_up_for_ever_keeps_nobody_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, never = threading.Event(), threading.Event()

    def look_up(_host: str, _port: int) -> None:
        asked.set()
        never.wait()

    monkeypatch.setattr(daemon_module, "listen", look_up)
    loaded = load(None, {"control.socket": str(tmp_path / "llmd.sock")})
    running = asyncio.create_task(Daemon(loaded, load).run())
    await until(asked.is_set)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, HANG_S) == 0
    never.set()
    _leave_signals()


async def test_what_fails_while_it_is_told_to_stop_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(load(), load)

    def find_model(_config: object, progress: object) -> None:
        asyncio.run_coroutine_threadsafe(_call(daemon.life.stop.set), loop).result()
        raise ModelError("no model after all")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(daemon_module, "find_model", find_model)
    assert await asyncio.wait_for(daemon.prepare(""), HANG_S) is None


async def _call(what: Callable[[], None]) -> None:
    what()


async def test_whoever_ignores_a_closed_terminal_goes_on() -> None:
    """As `nohup llmd serve` does."""
    given = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        daemon = Daemon(load(), load)
        daemon.life.take_signals(None)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)  # handled after it
        await until(daemon.life.stop.is_set)
        assert not daemon.life.hurry.is_set()
    finally:
        _leave_signals()
        signal.signal(signal.SIGHUP, given)
