"""How both ends of a handoff meet, and which way they choose."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import TypeVar

from daemon.engine.families import MOVE, NONE, ByTorch
from daemon.engine.handoff.ipc import IpcError, OpenedMemory, export
from daemon.engine.handoff.layout import HandoffError, Layout, layout_of
from daemon.engine.handoff.messages import HandoffLink, Hello, ReceiverPool, Shared, TransferWay
from daemon.engine.handoff.movers import Movers, PeerMover, movers_of
from daemon.engine.handoff.receiver import Receiver
from daemon.engine.handoff.ring import NUM_SLOTS, SharedRing, new_memory, slot_bytes_for
from daemon.engine.handoff.routes import PeerRoute, RingRoute, Route
from daemon.engine.handoff.sender import Sender
from daemon.engine.kv_cache import PagedKV
from daemon.engine.streams import compute_stream

log = logging.getLogger(__name__)

MEETING_S = 60.0
"""For how long an end waits for the other: it may still be loading its model."""
_FIRST = b"H"

Expected = TypeVar("Expected")


def connect_sender(
    sock: socket.socket,
    cache: PagedKV,
    direct: bool = True,
    num_slots: int = NUM_SLOTS,
    slot_bytes: int = 0,
    by_torch: ByTorch = NONE,
) -> Sender:
    """The sending end over one end of a Unix socketpair, which it owns from now on.

    Call it on the thread that computes: its current stream is the one of the steps. `direct`: write
    into the receiver's pool where that is possible, by a kernel that torch has nothing like; the
    ring's sizes are for tests. Blocks until the receiver answers; raises HandoffError where it does
    not, or where the pools differ.
    """
    layout = layout_of(cache)
    slot_bytes = slot_bytes or slot_bytes_for(cache.block_bytes)
    with _meeting(sock) as link, _memory(num_slots * slot_bytes) as fd:
        _send_descriptors(sock, fd)
        link.send(Hello(layout, num_slots, slot_bytes))
        pool = _expect(link, ReceiverPool)
        layout.check(pool.layout)
        memory = _opened(pool.shared, cache) if direct and MOVE not in by_torch else None
        link.send(TransferWay(direct=memory is not None))
        route: Route
        if memory is not None:
            route = _straight(layout, cache, memory)
        else:
            route = RingRoute(layout, *_ring(layout, cache, fd, (num_slots, slot_bytes), by_torch))
        counts = cache.num_blocks, pool.num_blocks
        return Sender(link, layout, counts, compute_stream(cache.raw.device), route)


def connect_receiver(sock: socket.socket, cache: PagedKV, by_torch: ByTorch = NONE) -> Receiver:
    """The receiving end over the other end of the socketpair; see `connect_sender`."""
    layout = layout_of(cache)
    with _meeting(sock) as link, _descriptors(sock) as (fd, process):
        hello = _expect(link, Hello)
        link.send(ReceiverPool(layout, cache.num_blocks, _shared(cache)))
        layout.check(hello.layout)
        ring = None
        if not _expect(link, TransferWay).direct:
            ring = _ring(layout, cache, fd, (hello.num_slots, hello.slot_bytes), by_torch)
        return Receiver(
            link,
            cache,
            compute_stream(cache.raw.device),
            ring,
            os.dup(process) if process >= 0 else -1,
        )


@contextlib.contextmanager
def _meeting(sock: socket.socket) -> Iterator[HandoffLink]:
    """A link for as long as the ends meet; whatever fails closes it and is a HandoffError."""
    sock.settimeout(MEETING_S)
    link = HandoffLink(sock)
    try:
        yield link
        sock.settimeout(None)
    except BaseException as error:
        link.close()
        if isinstance(error, OSError | ValueError | RuntimeError):
            raise HandoffError(f"the ends of a handoff did not meet: {error}") from error
        raise


@contextlib.contextmanager
def _memory(size_bytes: int) -> Iterator[int]:
    """A memfd; who mapped or received it keeps it."""
    fd = new_memory(size_bytes)
    try:
        yield fd
    finally:
        os.close(fd)


def _send_descriptors(sock: socket.socket, memory: int) -> None:
    """The ring's memory, and a pidfd of this process where the kernel has them."""
    with contextlib.ExitStack() as stack:
        fds = [memory]
        with contextlib.suppress(OSError, AttributeError):
            fds.append(os.pidfd_open(os.getpid()))
            stack.callback(os.close, fds[-1])
        socket.send_fds(sock, [_FIRST], fds)


@contextlib.contextmanager
def _descriptors(sock: socket.socket) -> Iterator[tuple[int, int]]:
    """What `_send_descriptors` sent: memory and pidfd, or -1 for the latter."""
    octet, fds, _flags, _address = socket.recv_fds(sock, len(_FIRST), 2)
    try:
        if octet != _FIRST or not fds:
            raise HandoffError("the other end of the handoff is no sender")
        yield fds[0], fds[1] if len(fds) > 1 else -1
    finally:
        for fd in fds:
            os.close(fd)


def _expect(link: HandoffLink, kind: type[Expected]) -> Expected:
    message = link.receive()
    if isinstance(message, kind):
        return message
    found = "nothing" if message is None else type(message).__name__
    raise HandoffError(f"the other end of the handoff sent {found} instead of {kind.__name__}")


def _ring(
    layout: Layout, cache: PagedKV, fd: int, sizes: tuple[int, int], by_torch: ByTorch
) -> tuple[SharedRing, Movers]:
    """The ring in a memfd, and what moves blocks to it and back."""
    ring = SharedRing(fd, *sizes, cache.raw.device)
    try:
        return ring, movers_of(layout, cache.raw, ring.slot_bytes, by_torch)
    except BaseException:
        ring.close()
        raise


def _straight(layout: Layout, cache: PagedKV, memory: OpenedMemory) -> PeerRoute:
    """The way into a pool that was opened."""
    try:
        return PeerRoute(layout, memory, PeerMover(layout, cache.raw, memory.address))
    except BaseException:
        memory.close()
        raise


def _shared(cache: PagedKV) -> Shared | None:
    """How another process may write into the pool; None where it may not."""
    if not cache.raw.is_cuda:
        return None
    try:
        return export(cache.raw)
    except IpcError as error:
        log.info("handoff: this pool is not shared, host memory is used: %s", error)
        return None


def _opened(shared: Shared | None, cache: PagedKV) -> OpenedMemory | None:
    if shared is None or not cache.raw.is_cuda:
        return None
    try:
        return OpenedMemory(shared, cache.raw.device)
    except IpcError as error:
        log.info("handoff: the pool there cannot be opened, host memory is used: %s", error)
        return None
