"""Events that wait for a slow client, deflated, since they resemble each other."""

import zlib
from collections import deque

PIECE_BYTES = 16 * 1024
_LEVEL = 1


class Backlog:
    """A queue of bytes: events go in one by one and come out in pieces, none lost."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._tail: list[bytes] = []
        self._pieces_bytes = self._tail_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces or self._tail)

    @property
    def size_bytes(self) -> int:
        """Bytes kept in memory."""
        return self._pieces_bytes + self._tail_bytes

    def add(self, event: bytes) -> None:
        """Append an event."""
        self._tail.append(event)
        self._tail_bytes += len(event)
        if self._tail_bytes >= PIECE_BYTES:
            piece = zlib.compress(b"".join(self._tail), _LEVEL)
            self._pieces.append(piece)
            self._pieces_bytes += len(piece)
            self._tail.clear()
            self._tail_bytes = 0

    def pop(self) -> bytes:
        """The oldest events, as they came; at least one if there is any."""
        if self._pieces:
            piece = self._pieces.popleft()
            self._pieces_bytes -= len(piece)
            return zlib.decompress(piece)
        piece = b"".join(self._tail)
        self._tail.clear()
        self._tail_bytes = 0
        return piece
