"""Frames on a Unix stream socket: a five-byte header, then the payload.

A payload above `INLINE_LIMIT_BYTES` travels in a memfd passed beside its header instead, so that
a long prompt is never copied through socket buffers, and no named segment can outlive a killed
process.
"""

import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Generator

INLINE_LIMIT_BYTES = 64 * 1024
FRAME_LIMIT_BYTES = 1 << 30

_HEADER = struct.Struct("<IB")
_INLINE, _MEMFD = 0, 1
_READ_BYTES = 256 * 1024
_MAX_FDS = 16


class FrameError(Exception):
    """The peer sent something that is not a frame, or one over the limit."""


def inline_frame(payload: bytes) -> bytes:
    """The bytes of a frame whose payload follows its header."""
    return _HEADER.pack(len(payload), _INLINE) + payload


def memfd_frame(payload: bytes) -> tuple[bytes, int]:
    """The header of a frame whose payload lies in a memfd, and the memfd; the caller closes it."""
    fd = os.memfd_create("llmd-frame", os.MFD_CLOEXEC)
    try:
        view = memoryview(payload)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        raise
    return _HEADER.pack(len(payload), _MEMFD), fd


def _read_memfd(fd: int, size: int) -> bytes:
    """The payload in a received memfd; closes it. FrameError if it is shorter than announced."""
    try:
        if os.fstat(fd).st_size != size:
            raise FrameError("a memfd does not have the announced size")
        if size == 0:
            return b""
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapped:
            return bytes(mapped)
    finally:
        os.close(fd)


class FrameReader:
    """Collects a socket's bytes and gives back whole payloads, in order."""

    def __init__(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    def receive(self, sock: socket.socket) -> bool:
        """Read once from the socket; False at its end. BlockingIOError comes from the socket."""
        data, fds, _flags, _address = socket.recv_fds(sock, _READ_BYTES, _MAX_FDS)
        self._fds.extend(fds)
        self._buffer += data
        return bool(data)

    def feed(self, data: bytes) -> None:
        """Take bytes that were read elsewhere (an asyncio stream)."""
        self._buffer += data

    def payloads(self) -> Generator[bytes, None, None]:
        """Every whole payload received so far. After a FrameError the connection is useless."""
        position = 0
        try:
            while len(self._buffer) - position >= _HEADER.size:
                size, kind = _HEADER.unpack_from(self._buffer, position)
                if size > self._limit_bytes or kind not in (_INLINE, _MEMFD):
                    raise FrameError(f"bad frame header: {size} bytes of kind {kind}")
                start = position + _HEADER.size
                if kind == _MEMFD:
                    position = start
                    if not self._fds:
                        raise FrameError("a frame announces a memfd that did not come")
                    yield _read_memfd(self._fds.popleft(), size)
                elif len(self._buffer) - start >= size:
                    position = start + size
                    yield bytes(memoryview(self._buffer)[start:position])
                else:
                    break
        finally:
            del self._buffer[:position]

    def close(self) -> None:
        """Close memfds that were received and never read."""
        while self._fds:
            os.close(self._fds.popleft())
