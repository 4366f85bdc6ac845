"""A viewer's end of the control socket: how to ask, how to read, and one blocking ask."""

import os
import socket
import time
from pathlib import Path

import msgspec

from daemon.config.paths import default_socket
from daemon.control.protocol import (
    FRAME_LIMIT_BYTES,
    ChoosePolicy,
    FromViewer,
    Refused,
    Snapshot,
    Status,
    ToViewer,
)
from daemon.wire.columns import decoder, encoder
from daemon.wire.frames import FrameError, FrameReader, inline_frame

SERVICE_SOCKET = Path("/run/llmd/llmd.sock")

_READ_BYTES = 64 * 1024
_encode = encoder().encode
_decode = decoder(ToViewer).decode


class ControlError(Exception):
    """No daemon answered, or it refused; the text says why, for a person."""


def attach_path() -> Path:
    """The user's own daemon's socket; the system service's where only that one exists."""
    own = default_socket()
    return SERVICE_SOCKET if not own.exists() and SERVICE_SOCKET.exists() else own


def question(message: FromViewer) -> bytes:
    """The frame that asks for `message`."""
    return inline_frame(_encode(message))


class SnapshotReader:
    """Turns the bytes of one connection into snapshots."""

    def __init__(self) -> None:
        self._frames = FrameReader(FRAME_LIMIT_BYTES)

    def feed(self, data: bytes) -> list[Snapshot]:
        """The snapshots completed by `data`. Raises ControlError if refused or not understood."""
        self._frames.feed(data)
        try:
            return [_snapshot(payload) for payload in self._frames.payloads()]
        except (FrameError, msgspec.MsgspecError, ValueError) as error:
            raise ControlError(f"the daemon's answer was not understood: {error}") from error


def _snapshot(payload: bytes) -> Snapshot:
    message: ToViewer = _decode(payload)
    if isinstance(message, Refused):
        raise ControlError(f"the daemon refused: {message.message}")
    return message


def fetch_snapshot(path: Path, timeout_s: float = 2.0) -> Snapshot:
    """The daemon's snapshot now, within `timeout_s` in all. Raises ControlError."""
    return _ask(path, Status(), timeout_s)


def choose_policy(path: Path, policy: str, timeout_s: float = 2.0) -> Snapshot:
    """Make the daemon rank by `policy`; its snapshot after that. Raises ControlError."""
    return _ask(path, ChoosePolicy(policy), timeout_s)


def _ask(path: Path, message: FromViewer, timeout_s: float) -> Snapshot:
    deadline_s = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(timeout_s)
            sock.connect(os.fspath(path))
            sock.sendall(question(message))
            return _first_snapshot(sock, deadline_s)
        except OSError as error:
            raise ControlError(no_daemon(path, error)) from error


def _first_snapshot(sock: socket.socket, deadline_s: float) -> Snapshot:
    reader = SnapshotReader()
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it did not answer in time")
        sock.settimeout(left_s)
        data = sock.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        if snapshots := reader.feed(data):
            return snapshots[0]


def no_daemon(path: Path, error: OSError) -> str:
    """One line for a person: which socket did not answer, and why."""
    if isinstance(error, FileNotFoundError):
        reason = "no such socket"
    elif isinstance(error, ConnectionRefusedError):
        reason = "nobody listens there"
    else:
        reason = error.strerror or str(error)
    return f"no llmd daemon answers at {path}: {reason}"
