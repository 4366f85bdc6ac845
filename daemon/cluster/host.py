"""The node's end of a worker that Ray placed: an actor that hosts the engine's own process.

All arguments and answers are bytes: frames as they go over a local worker's socket, several in a
row. Ray is not imported here; it runs this class in a process of its own on the node. The worker is
an exec'd process like a local one, and ends with the actor's process.
"""

import contextlib
import os
import socket
import subprocess
import sys
from signal import SIGKILL

import msgspec

from daemon import __version__
from daemon.protocol.worker import Exited
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import encoder
from daemon.wire.frames import FrameReader, inline_frame

NUMBER_BYTES = 8
"""Bytes of the number before the frames of a `give`: Ray may swap calls that are close together."""
END_S = 5.0
"""Time for a worker that has hung up to exit."""


class Begin(msgspec.Struct, frozen=True):
    """The order to start a worker's process on a node."""

    version: str  # of llmd where the daemon runs
    module: str  # of the worker
    device: str


class WorkerHost:
    """One worker's process, from `begin` until `take` returns nothing.

    `give` is called in one thread, `take` in another.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: BlockingChannel | None = None
        self._early: dict[int, bytes] = {}  # frames by number, whose predecessors have not come
        self._next = 0

    def begin(self, order: bytes) -> bytes:
        """Start the process that a msgpack `Begin` orders; the reason where it does not start."""
        begin = msgspec.msgpack.decode(order, type=Begin)
        if begin.version != __version__:
            return f"llmd is {__version__} there, and {begin.version} here".encode()
        with contextlib.suppress(PermissionError):
            # Ray starts actors with a nice value of 15, which this thread's child would inherit.
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            command = [sys.executable, "-m", begin.module, "--fd", str(theirs.fileno())]
            try:
                self._process = subprocess.Popen(
                    [*command, "--device", begin.device.partition(":")[0]],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
            except OSError as error:
                ours.close()
                return f"its process does not start: {error}".encode()
        self._channel = BlockingChannel(ours)
        return b""

    def give(self, numbered: bytes) -> None:
        """Pass frames on to the worker, in the order of their numbers."""
        number = int.from_bytes(numbered[:NUMBER_BYTES], "little")
        self._early[number] = numbered[NUMBER_BYTES:]
        while (frames := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._pass_on(frames)

    def take(self) -> bytes:
        """The worker's next frames: waits for one. `Exited` is the last; nothing follows it."""
        if self._channel is None or self._process is None:
            return b""
        payload = self._channel.receive()
        if payload is None:
            status, self._process = self._end_of(self._process), None
            return inline_frame(encoder().encode(Exited(status)))
        frames = [inline_frame(payload)]
        while self._channel.wait(0.0) and (payload := self._channel.receive()) is not None:
            frames.append(inline_frame(payload))
        return b"".join(frames)

    def _pass_on(self, frames: bytes) -> None:
        reader = FrameReader()
        reader.feed(frames)
        if self._channel is not None:
            try:
                for payload in reader.payloads():
                    self._channel.send(payload)
            except (BrokenPipeError, ConnectionResetError):
                pass  # `take` finds its end

    def _end_of(self, process: subprocess.Popen[bytes]) -> int:
        """The exit status of a worker that has hung up; negative: the signal that ended it."""
        try:
            return process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return -SIGKILL
