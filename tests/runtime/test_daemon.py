"""What signals mean to a daemon."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from daemon.config.load import Loaded, load
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
    _leave_signals()


async def test_without_a_file_sighup_is_a_closed_terminal() -> None:
    daemon = Daemon(load(), load)
    daemon._take_signals()
    os.kill(os.getpid(), signal.SIGHUP)
    await until(daemon._stop.is_set)
    assert not daemon._hurry.is_set()
    _leave_signals()


def _leave_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(number)
