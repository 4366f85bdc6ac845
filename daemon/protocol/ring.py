"""The ring of host memory through which blocks go to another worker: its memory and its slots.

Both ends of a link know these messages, and so does a relay of a link between two nodes
(`daemon/cluster/relay.py`), which takes what lies in slots from one node's ring to the other's. All
other messages of the ends (`daemon/engine/transfer/messages.py`) pass a relay unread.
"""

import contextlib
import os
import socket
from collections.abc import Iterator

import msgspec

from daemon.wire.columns import Column

_FIRST = b"H"


class RingShape(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender's first message, behind the ring's memory."""

    num_slots: int
    slot_bytes: int


class Filled(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A slot of the ring holds a part of some of a transfer's blocks, one after another."""

    transfer: int
    slot: int
    layer: int  # or all of them
    first: int  # among the transfer's blocks
    count: int
    size_bytes: int  # of the slot that they take
    sums: Column  # int64 [count] of these parts, as they left; empty: they are not checked


def new_memory(size_bytes: int) -> int:
    """A memfd of `size_bytes` zero bytes, which the caller closes."""
    fd = os.memfd_create("llmd-transfer", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def hand_memory(sock: socket.socket, *fds: int) -> None:
    """Hand the ring's memory to the other end, and perhaps a pidfd of this process."""
    socket.send_fds(sock, [_FIRST], fds)


@contextlib.contextmanager
def handed_memory(sock: socket.socket) -> Iterator[tuple[int, int]]:
    """The ring's memory that the other end handed, and a pidfd or -1. Raises OSError."""
    octet, fds, _flags, _address = socket.recv_fds(sock, len(_FIRST), 2)
    try:
        if octet != _FIRST or not fds:
            raise ConnectionError("the other end of the link is no sender")
        yield fds[0], fds[1] if len(fds) > 1 else -1
    finally:
        for fd in fds:
            os.close(fd)
