"""systemd's readiness protocol (sd_notify): datagrams to the socket named in NOTIFY_SOCKET."""

import contextlib
import os
import socket
import time


def _send(text: str) -> None:
    """Tell the service manager; nothing happens where there is none."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.sendto(text.encode(), address)


def ready(status: str) -> None:
    """A first token is possible."""
    _send(f"READY=1\nSTATUS={status}")


def status(text: str) -> None:
    """A sentence for `systemctl status`; also asks for more time while starting."""
    _send(f"STATUS={text}\nEXTEND_TIMEOUT_USEC=120000000")


def stopping(text: str) -> None:
    """The daemon is on its way out."""
    _send(f"STOPPING=1\nSTATUS={text}\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
