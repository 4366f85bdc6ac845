"""Messages that come down a pipe, a line each, from a process that may die or hang."""

import os
import select
import time

import msgspec

from daemon.engine.verify.kernels.messages import Message

_READ_BYTES = 65_536


class LineReader:
    """The reading end of a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = b""
        self.hung_up = False

    def next(self, limit_s: float) -> Message | None:
        """The next message; None where none comes in time, or ever (`hung_up`)."""
        deadline_s = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([self._fd], [], [], left_s)[0]:
                return None
            data = os.read(self._fd, _READ_BYTES)
            if not data:
                self.hung_up = True
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: Message = msgspec.json.decode(line, type=Message)
        return message


def write(fd: int, message: Message) -> None:
    """Send a message; a short one is written whole or not at all."""
    os.write(fd, msgspec.json.encode(message) + b"\n")
