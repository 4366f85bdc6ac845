"""A daemon that is told to stop while it starts, at any stage, ends at once, and all with it."""

import fcntl
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.models.embedded import converted_folder, embedded_gguf
from tests.e2e.live import REAL, LiveDaemon
from tests.e2e.test_hangs import family, runs, until
from tests.e2e.tiny import tiny_folder
from tests.runtime.terminal import Terminal


def ended(daemon: LiveDaemon, begun: Callable[[], object]) -> list[int]:
    """Tell it to stop as soon as something has begun; the processes that it had, all gone."""
    try:
        until(begun)
        everybody = family(daemon.process.pid)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(20) == 0, daemon.text()
        until(lambda: not any(map(runs, everybody)))
        assert "Traceback" not in daemon.text()
        return everybody
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()


def test_while_another_start_holds_the_lock_of_the_conversion(tmp_path: Path) -> None:
    gguf, cache = tmp_path / "model.gguf", tmp_path / "cache"
    gguf.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    folder = converted_folder(gguf, cache)
    folder.parent.mkdir(parents=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        daemon = LiveDaemon("--model", str(gguf), "--set", f'daemon.cache="{cache}"')
        ended(daemon, lambda: "INFO daemon: preparing " in daemon.text())


def test_while_a_model_is_converted(tmp_path: Path) -> None:
    model = ["--model", str(embedded_gguf()), "--set", f'daemon.cache="{tmp_path}"']
    daemon = LiveDaemon(*model)
    ended(daemon, lambda: "daemon.engine.loading.convert" in daemon.children())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


def is_told(daemon: LiveDaemon) -> bool:
    """Whether its worker has been told what to load."""
    return "default sampling" in daemon.text()


def test_while_a_worker_loads_and_all_of_its_processes_are_stopped(folder: Path) -> None:
    daemon = LiveDaemon("--model", str(folder), env=REAL)

    def all_stopped() -> bool:
        # The worker is there before: its model is looked at meanwhile, by a process that may not
        # have asked yet to die with its parent.
        children = daemon.children()
        if children.keys() != {"daemon.api", "daemon.engine.worker.main"} or not is_told(daemon):
            return False
        for pid in children.values():
            os.kill(pid, signal.SIGSTOP)
        return True

    ended(daemon, all_stopped)


def test_ctrl_c_while_a_terminal_shows_how_far_it_is(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "daemon.cli.main", "serve", "--model", str(folder)]
    command += ["--port", "0", "--socket", str(tmp_path / "sock"), "--set", "daemon.spare=false"]
    state = {"STATE_DIRECTORY": str(tmp_path)}
    terminal = Terminal(command, {**os.environ, **state})
    terminal.wait_for("imports              [")
    everybody = family(terminal.process.pid)
    terminal.interrupt()
    assert terminal.ended() == 0, terminal.said
    until(lambda: not any(map(runs, everybody)))
    assert all(" INFO " in line for line in terminal.screen()), "what was drawn is gone"


@pytest.mark.soak
@pytest.mark.parametrize("part", range(40))
def test_at_any_moment(folder: Path, part: int) -> None:
    """From the first line of the log on; before it Python's own answer to SIGTERM is in force."""
    daemon = LiveDaemon("--model", str(folder), "--set", "daemon.spare=true", env=REAL)
    until(lambda: "INFO daemon: preparing " in daemon.text())
    time.sleep(0.1 * part)
    ended(daemon, lambda: True)
