"""The worker's end of a channel: plain blocking calls, no event loop."""

import os
import select
import socket
from collections import deque

from daemon.wire.frames import INLINE_LIMIT_BYTES, FrameReader, inline_frame, memfd_frame


class BlockingChannel:
    """Frames over a blocking Unix socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._ready: deque[bytes] = deque()
        self._poll = select.poll()  # `select` knows no descriptors beyond 1023
        self._poll.register(sock, select.POLLIN)

    def send(self, payload: bytes) -> None:
        """Send one frame; blocks while the peer's buffer is full."""
        if len(payload) <= INLINE_LIMIT_BYTES:
            self._sock.sendall(inline_frame(payload))
            return
        header, fd = memfd_frame(payload)
        try:
            socket.send_fds(self._sock, [header], [fd])
        finally:
            os.close(fd)

    def receive(self) -> bytes | None:
        """The next frame; waits for it; None when the peer has closed."""
        while not self._ready:
            try:
                if not self._reader.receive(self._sock):
                    return None
            except ConnectionResetError:
                return None
            self._ready.extend(self._reader.payloads())
        return self._ready.popleft()

    def wait(self, timeout_s: float) -> bool:
        """Whether anything comes in time: a frame, a piece of one, or the peer's end."""
        if self._ready:
            return True
        return bool(self._poll.poll(max(0.0, 1e3 * timeout_s)))

    def fileno(self) -> int:
        """The socket's descriptor, for waiting on several."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket and drop unread frames."""
        self._reader.close()
        self._sock.close()
