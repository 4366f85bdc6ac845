"""systemd's readiness protocol (sd_notify): datagrams to the socket named in NOTIFY_SOCKET."""

import contextlib
import os
import socket
import time

_NOW = socket.MSG_DONTWAIT
MORE_S = 330.0
"""Time that the service manager is asked to wait after each sign of progress."""


def _send(**fields: str) -> None:
    """Tell the service manager; nothing happens if there is none, or if it does not read."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.sendto("\n".join(f"{k}={_line(v)}" for k, v in fields.items()).encode(), _NOW, address)


def _line(text: str) -> str:
    """One line: a model's name or an error must not become an assignment of its own."""
    return " ".join(text.splitlines())


def ready(status: str) -> None:
    """A first token is possible."""
    _send(READY="1", STATUS=status)


def starting(text: str) -> None:
    """Send a sentence for `systemctl status`, and a request for more time.

    It asks for a little more than a loading worker may be silent, so that llmd itself finds a hang.
    """
    _send(STATUS=text, EXTEND_TIMEOUT_USEC=str(round(MORE_S * 1e6)))


def status(text: str) -> None:
    """Send a sentence for `systemctl status`."""
    _send(STATUS=text)


def reloading() -> None:
    """The configuration is read again; `ready` ends it."""
    _send(RELOADING="1", MONOTONIC_USEC=_now_us())


def alive() -> None:
    """The daemon makes progress."""
    _send(WATCHDOG="1")


def watchdog_s() -> float:
    """Time that the service manager waits for `alive` before it kills; 0: it does not."""
    asked_us = os.environ.get("WATCHDOG_USEC", "")
    if not asked_us.isdecimal() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(
        os.getpid()
    ):
        return 0.0
    return int(asked_us) / 1e6


def stopping(text: str) -> None:
    """The daemon is stopping."""
    _send(STOPPING="1", STATUS=text, MONOTONIC_USEC=_now_us())


def _now_us() -> str:
    return str(time.monotonic_ns() // 1000)
