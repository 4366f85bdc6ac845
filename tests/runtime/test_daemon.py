"""What signals mean to a daemon, and what it says while it starts."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from daemon.config.load import Loaded, load
from daemon.models.shape import ModelError
from daemon.protocol.worker import Loading
from daemon.runtime import daemon as daemon_module
from daemon.runtime import notify
from daemon.runtime.daemon import Daemon
from tests.runtime.ends import until


async def test_sighup_reads_the_file_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMD_LOG_LEVEL", "info")
    file = tmp_path / "llmd.toml"
    file.write_text("")

    def read() -> Loaded:
        return load(file)

    daemon = Daemon(read(), read)
    daemon._take_signals()
    file.write_text("[daemon]\ndrain_s = 1.0\n")
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: daemon._config.daemon.drain_s == 1.0)
    assert not daemon._stop.is_set()
    await until(lambda: not daemon._tasks)  # nothing of it is kept
    _leave_signals()


async def test_without_a_file_sighup_is_a_closed_terminal() -> None:
    daemon = Daemon(load(), load)
    daemon._take_signals()
    os.kill(os.getpid(), signal.SIGHUP)
    await until(daemon._stop.is_set)
    assert not daemon._hurry.is_set()
    _leave_signals()


async def test_a_long_conversion_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    converted = threading.Event()

    def find_model(_config: object, told: object) -> None:
        converted.wait(5)
        raise ModelError("no model after all")

    monkeypatch.setattr(notify, "starting", told.append)
    monkeypatch.setattr(daemon_module, "find_model", find_model)
    monkeypatch.setattr(daemon_module, "PREPARING_S", 0.01, raising=False)
    serving = asyncio.create_task(Daemon(load(), load)._serve())
    try:
        await until(lambda: len(told) > 3)
    finally:
        converted.set()
    with pytest.raises(ModelError):
        await serving
    assert set(told) == {"preparing the model"}


async def test_a_worker_that_is_given_up_is_said_to_load_no_more() -> None:
    daemon = Daemon(load(), load)
    daemon._workers = cast(Any, [None, None])
    daemon._on_loading(0, Loading("weights", 0.1))
    daemon._on_hopeless(0, "no such file")
    daemon._on_loading(1, Loading("warm-up", 0.9))
    assert daemon._status.sentence == "loading: warm-up 90%"


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
    assert await asyncio.wait_for(running, 5) == 0
    never.set()
    _leave_signals()


async def test_what_fails_while_it_is_told_to_stop_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(load(), load)

    def find_model(_config: object, told: object) -> None:
        asyncio.run_coroutine_threadsafe(_call(daemon._stop.set), loop).result()
        raise ModelError("no model after all")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(daemon_module, "find_model", find_model)
    await asyncio.wait_for(daemon._serve(), 5)
    assert daemon._runtime is None


async def _call(what: Callable[[], None]) -> None:
    what()


async def test_whoever_ignores_a_closed_terminal_goes_on() -> None:
    """As `nohup llmd serve` does."""
    given = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        daemon = Daemon(load(), load)
        daemon._take_signals()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)  # handled after it
        await until(daemon._stop.is_set)
        assert not daemon._hurry.is_set()
    finally:
        _leave_signals()
        signal.signal(signal.SIGHUP, given)
