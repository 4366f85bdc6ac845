"""An asyncio end of a channel: frames in by callback, frames out without waiting.

Messages are columns, one frame a step: a callback per frame costs less than a stream reader's
task switch, and keeps the order of sends and receives plain.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Generator

from daemon.wire.frames import (
    INLINE_LIMIT_BYTES,
    FrameError,
    FrameReader,
    inline_frame,
    memfd_frame,
)

PENDING_LIMIT_BYTES = 64 * 1024 * 1024


class Channel:
    """Frames over a non-blocking Unix socket, on the running event loop.

    `on_frame(payload)` is called for each frame, `on_close(error)` once when the peer closed, sent
    rubbish, or stopped reading until `PENDING_LIMIT_BYTES` waited for it. Neither is ever called
    from inside `send`: the sender is in the middle of something.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[bytes], None],
        on_close: Callable[[str], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_frame = on_frame
        self._on_close = on_close
        self._reader = FrameReader()
        # What is left to send, its memfd or -1, the payload's size.
        self._outgoing: deque[tuple[memoryview, int, int]] = deque()
        self._pending_bytes = 0
        self._deaf = False  # the peer takes nothing more, but its frames are still read
        self._closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._closed

    def send(self, payload: bytes) -> None:
        """Queue one frame; it is sent at once unless the peer's buffer is full."""
        if self._closed or self._deaf:
            return
        if len(payload) <= INLINE_LIMIT_BYTES:
            self._outgoing.append((memoryview(inline_frame(payload)), -1, len(payload)))
        else:
            header, fd = memfd_frame(payload)
            self._outgoing.append((memoryview(header), fd, len(payload)))
        self._pending_bytes += len(payload)
        if self._pending_bytes > PENDING_LIMIT_BYTES:
            self._shut("the peer stopped reading")
        elif len(self._outgoing) == 1:
            self._flush()

    def close(self) -> None:
        """Close without calling `on_close`."""
        self.detach().close()

    def detach(self) -> socket.socket:
        """Let go of the socket, which stays open; unsent and half-read frames are lost.

        No callback is called and nothing is sent after this.
        """
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._drop_outgoing()
            self._reader.close()
        return self._sock

    def _drop_outgoing(self) -> None:
        for _view, fd, _size in self._outgoing:
            if fd >= 0:
                os.close(fd)
        self._outgoing.clear()
        self._pending_bytes = 0

    def _shut(self, error: str) -> None:
        if not self._closed:
            self.close()
            self._loop.call_soon(self._on_close, error)

    def _readable(self) -> None:
        try:
            alive = self._reader.receive(self._sock)
        except BlockingIOError:
            return
        except OSError as error:
            self._shut(str(error))
            return
        # Only the reader's errors are the peer's; a callback's own go to the loop.
        payloads = self._reader.payloads()
        try:
            while (payload := self._next(payloads)) is not None:
                self._on_frame(payload)
                if self._closed:
                    return
        finally:
            payloads.close()
        if not alive:
            self._shut("the peer closed the connection")

    def _next(self, payloads: Generator[bytes, None, None]) -> bytes | None:
        """The next frame; None if there is none now, or never will be."""
        try:
            return next(payloads, None)
        except (OSError, FrameError) as error:
            self._shut(str(error))
            return None

    def _flush(self) -> None:
        try:
            while self._outgoing:
                self._send_first()
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        except (BrokenPipeError, ConnectionResetError):
            # The peer is gone, but its last frames may lie in our buffer: reading finds its end.
            self._deaf = True
            self._drop_outgoing()
        except OSError as error:
            self._shut(str(error))

    def _send_first(self) -> None:
        view, fd, size = self._outgoing[0]
        if fd >= 0:
            sent = socket.send_fds(self._sock, [view], [fd])
            os.close(fd)
            fd = -1
        else:
            sent = self._sock.send(view)
        if sent == len(view):
            self._outgoing.popleft()
            self._pending_bytes -= size
        else:
            self._outgoing[0] = (view[sent:], fd, size)

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._flush()
