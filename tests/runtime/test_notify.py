"""sd_notify against a real datagram socket, on a path and in the abstract namespace."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.base import notify
from daemon.supervisor.worker import LOAD_STALL_S
from tests.wire.descriptors import open_descriptors


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = f"llmd-notify-{os.getpid()}"
    name = str(tmp_path / "n") if request.param == "path" else f"@{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name if request.param == "path" else "\0" + name[1:])
        sock.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield sock


def test_each_message(manager: socket.socket) -> None:
    before, began_us = open_descriptors(), time.monotonic_ns() // 1000
    notify.starting("loading weights 40 %")
    notify.ready("a model at http://127.0.0.1:8000")
    notify.alive()
    notify.status("draining")
    notify.reloading()
    notify.stopping("draining")
    starting, ready, alive, status, reloading, stopping = (
        manager.recv(4096).decode().splitlines() for _ in range(6)
    )
    assert starting == ["STATUS=loading weights 40 %", "EXTEND_TIMEOUT_USEC=330000000"]
    assert (alive, status) == (["WATCHDOG=1"], ["STATUS=draining"])
    assert reloading[0] == "RELOADING=1"
    told_us = int(reloading[1].removeprefix("MONOTONIC_USEC="))
    assert began_us <= told_us <= time.monotonic_ns() // 1000
    assert ready == ["READY=1", "STATUS=a model at http://127.0.0.1:8000"]
    assert stopping[:2] == ["STOPPING=1", "STATUS=draining"]
    assert stopping[2].startswith("MONOTONIC_USEC=")
    assert open_descriptors() == before


def test_a_status_is_one_line(manager: socket.socket) -> None:
    """A model's name or an error may hold anything; it must not become another assignment."""
    notify.starting("bad\nREADY=1\r\nMAINPID=1")
    lines = manager.recv(4096).decode().split("\n")
    assert [line.partition("=")[0] for line in lines] == ["STATUS", "EXTEND_TIMEOUT_USEC"]


def test_a_manager_that_does_not_read_never_blocks_the_daemon(manager: socket.socket) -> None:
    for _ in range(2000):
        notify.status("x" * 500)


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "@llmd-nobody-listens-here"])
def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    before = open_descriptors()
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify.ready("alone")
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("3000000", None, 3.0),
        ("3000000", str(os.getpid()), 3.0),
        ("3000000", "1", 0.0),
        ("", None, 0.0),
        ("soon", None, 0.0),
        ("-5", None, 0.0),
    ],
)
def test_the_watchdogs_interval(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str | None, seconds: float
) -> None:
    """One that was meant for another process, such as a shell that started us, is not ours."""
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    else:
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
    assert notify.watchdog_s() == seconds


def test_a_loading_worker_may_be_silent_for_less_than_the_manager_waits() -> None:
    assert LOAD_STALL_S < notify.MORE_S < 2 * LOAD_STALL_S
