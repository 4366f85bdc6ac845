"""A viewer's end of the control socket: questions, messages, and one blocking exchange."""

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from daemon.config.paths import default_socket
from daemon.protocol.control import (
    FLIP_WAIT_S,
    FRAME_LIMIT_BYTES,
    BlockOwners,
    Cap,
    Capped,
    ChooseBudget,
    ChoosePlacement,
    ChoosePolicy,
    ChooseRoles,
    Drain,
    DrainInstance,
    Flip,
    Flipped,
    FromViewer,
    Migrate,
    Migrating,
    Refused,
    Reload,
    Reloaded,
    Resume,
    ResumeInstance,
    Snapshot,
    Status,
    Story,
    ToViewer,
)
from daemon.wire.columns import decoder, encoder
from daemon.wire.frames import FrameError, FrameReader, inline_frame

SERVICE_SOCKET = Path("/run/llmd/llmd.sock")

Message = Snapshot | Story | BlockOwners | Reloaded | Flipped | Migrating | Capped
"""The daemon's messages to a viewer; a refusal is raised instead."""

Answer = TypeVar("Answer", Snapshot, Reloaded, Flipped, Migrating, Capped)

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
    """The frame of a question or order."""
    return inline_frame(_encode(message))


class MessageReader:
    """Turns the bytes of one connection into the daemon's messages."""

    def __init__(self) -> None:
        self._frames = FrameReader(FRAME_LIMIT_BYTES)

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by `data`. Raises ControlError if refused or not understood."""
        self._frames.feed(data)
        try:
            return [decoded(payload) for payload in self._frames.payloads()]
        except (FrameError, msgspec.MsgspecError, ValueError) as error:
            raise ControlError(f"the daemon's answer was not understood: {error}") from error


def encoded(message: Message) -> bytes:
    """A message as the daemon sends it, without its frame."""
    return _encode(message)


def decoded(payload: bytes) -> Message:
    """The message that `encoded` wrote. Raises msgspec's errors, or ControlError for a refusal."""
    message: ToViewer = _decode(payload)
    if isinstance(message, Refused):
        raise ControlError(f"the daemon refused: {message.message}")
    return message


def fetch_snapshot(path: Path, timeout_s: float = 2.0) -> Snapshot:
    """The daemon's snapshot now, within `timeout_s` in all. Raises ControlError."""
    return _ask(path, Status(), timeout_s, Snapshot)


def choose_policy(path: Path, policy: str, timeout_s: float = 2.0, instance: str = "") -> Snapshot:
    """Make one instance ("": all) rank by `policy`; return a snapshot after that. Raises
    ControlError.
    """
    return _ask(path, ChoosePolicy(policy, instance), timeout_s, Snapshot)


def choose_budget(path: Path, tokens: int, timeout_s: float = 2.0, instance: str = "") -> Snapshot:
    """Fill the steps of one instance ("": all) up to `tokens` (0: as configured); return a snapshot
    after that. Raises ControlError.
    """
    return _ask(path, ChooseBudget(tokens, instance), timeout_s, Snapshot)


def choose_placement(path: Path, placement: str, timeout_s: float = 2.0) -> Snapshot:
    """Make the daemon place by `placement`; return a snapshot after that. Raises ControlError."""
    return _ask(path, ChoosePlacement(placement), timeout_s, Snapshot)


def reload(path: Path, timeout_s: float = 2.0) -> Reloaded:
    """Make the daemon read its configuration again; return what changed. Raises ControlError."""
    return _ask(path, Reload(), timeout_s, Reloaded)


def drain(path: Path, timeout_s: float = 2.0) -> Snapshot:
    """Make the daemon take no new requests; return a snapshot after that. Raises ControlError."""
    return _ask(path, Drain(), timeout_s, Snapshot)


def resume(path: Path, timeout_s: float = 2.0) -> Snapshot:
    """Make the daemon take requests again; return a snapshot after that. Raises ControlError."""
    return _ask(path, Resume(), timeout_s, Snapshot)


def flip(
    path: Path, instance: str, role: str, timeout_s: float = 2.0, wait_s: float = FLIP_WAIT_S
) -> Flipped:
    """Give an instance another role, and wait `wait_s` at most for its first work.

    The daemon's answer may take that and `timeout_s`. Raises ControlError.
    """
    return _ask(path, Flip(instance, role, wait_s), wait_s + timeout_s, Flipped)


def cap(path: Path, instance: str, watts: float | None, timeout_s: float = 2.0) -> Capped:
    """Limit the power of an instance's card, None: as its role asks. Raises ControlError."""
    return _ask(path, Cap(instance, watts), timeout_s, Capped)


def choose_roles(path: Path, mode: str, timeout_s: float = 2.0) -> Snapshot:
    """Turn automatic roles on or off; return a snapshot after that. Raises ControlError."""
    return _ask(path, ChooseRoles(mode), timeout_s, Snapshot)


def migrate(path: Path, sequence: int, instance: str, timeout_s: float = 2.0) -> Migrating:
    """Order a sequence to another instance. Raises ControlError."""
    return _ask(path, Migrate(sequence, instance), timeout_s, Migrating)


def drain_instance(path: Path, instance: str, timeout_s: float = 2.0) -> Snapshot:
    """Migrate everything away from an instance; return a snapshot after that. Raises
    ControlError.
    """
    return _ask(path, DrainInstance(instance), timeout_s, Snapshot)


def resume_instance(path: Path, instance: str, timeout_s: float = 2.0) -> Snapshot:
    """Use an instance again; return a snapshot after that. Raises ControlError."""
    return _ask(path, ResumeInstance(instance), timeout_s, Snapshot)


def _ask(path: Path, message: FromViewer, timeout_s: float, kind: type[Answer]) -> Answer:
    deadline_s = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(timeout_s)
            sock.connect(os.fspath(path))
            with contextlib.suppress(BrokenPipeError):  # it was refused; the answer says why
                sock.sendall(question(message))
            return _first(kind, sock, deadline_s)
        except OSError as error:
            raise ControlError(no_daemon(path, error)) from error


def _first(kind: type[Answer], sock: socket.socket, deadline_s: float) -> Answer:
    reader = MessageReader()
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it did not answer in time")
        sock.settimeout(left_s)
        data = sock.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        for message in reader.feed(data):
            if isinstance(message, kind):
                return message


def no_daemon(path: Path, error: OSError) -> str:
    """One line for a person: which socket did not answer, and why."""
    if isinstance(error, FileNotFoundError):
        reason = "no such socket"
    elif isinstance(error, ConnectionRefusedError):
        reason = "no process listens there"
    else:
        reason = error.strerror or str(error)
    return f"no llmd daemon answers at {path}: {reason}"
