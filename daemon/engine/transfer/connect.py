"""How both ends of a link meet, and which route they choose."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from daemon.engine.batch.streams import Stream, compute_stream
from daemon.engine.families import MOVE, NONE, ByTorch
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.host_pool import HostPool
from daemon.engine.transfer.faults import LinkFaults
from daemon.engine.transfer.host_rows import HostRows
from daemon.engine.transfer.ipc import IpcError, OpenedMemory, export
from daemon.engine.transfer.layout import Layout, TransferError, layout_of
from daemon.engine.transfer.messages import Hello, ReceiverPool, Shared, TransferSocket, TransferWay
from daemon.engine.transfer.movers import Movers, PeerMover, movers_of
from daemon.engine.transfer.receiver import Receiver
from daemon.engine.transfer.ring import NUM_SLOTS, SharedRing, slot_bytes_for
from daemon.engine.transfer.routes import PeerRoute, RingRoute, Route, Sources
from daemon.engine.transfer.sender import PoolCounts, Sender
from daemon.engine.transfer.sums import BlockSums, Summer
from daemon.models.kv_parts import KVPart
from daemon.protocol.ring import RingShape, hand_memory, handed_memory, new_memory

log = logging.getLogger(__name__)

MEETING_S = 30.0
"""Longest wait of an end for each message of the other."""

Expected = TypeVar("Expected")


@dataclass(frozen=True, slots=True)
class EndPools:
    """The pools that a worker's ends of links read and write."""

    cache: PagedKV
    host: HostPool | None = None  # beside the pool
    compute: Stream | None = None  # the steps'; None: the calling thread's current stream
    by_torch: ByTorch = NONE
    faults: LinkFaults = field(default_factory=LinkFaults)

    @property
    def steps(self) -> Stream:
        """The stream that steps are computed on."""
        return self.compute or compute_stream(self.cache.raw.device)


def connect_sender(
    sock: socket.socket,
    here: EndPools,
    direct: bool = True,
    num_slots: int = NUM_SLOTS,
    slot_bytes: int = 0,
    checked: bool = True,
    part: KVPart | None = None,
) -> Sender:
    """The sending end over one end of a Unix socketpair, which it owns from now on.

    `direct`: write into the receiver's pool where that is possible, by a kernel of ours. The ring's
    sizes are for tests; `checked` is off only to measure what checksums cost. `part`: of each
    block, which never goes directly. Blocks until the receiver answers; raises TransferError where
    it does not, or where the pools differ.
    """
    cache = here.cache
    layout = layout_of(cache, part)
    slot_bytes = slot_bytes or slot_bytes_for(cache.block_bytes, cache.raw.device)
    with _meeting(sock, here.faults) as link, _memory(num_slots * slot_bytes) as fd:
        _hand_ring(sock, fd)
        link.send(RingShape(num_slots, slot_bytes))
        link.send(Hello(layout))
        pool = _expect(link, ReceiverPool)
        layout.check(pool.layout)
        possible = direct and MOVE not in here.by_torch and part is None
        memory = _opened(pool.shared, cache) if possible else None
        link.send(TransferWay(direct=memory is not None))
        route: Route
        if memory is not None:
            route = _straight(layout, here, memory, checked)
        else:
            ring = _ring(layout, here, fd, (num_slots, slot_bytes))
            route = RingRoute(layout, *ring, _sources(layout, here, checked))
        num_host = here.host.num_blocks if here.host is not None else 0
        counts = PoolCounts(cache.num_blocks, pool.num_blocks, num_host)
        return Sender(link, layout, counts, here.steps, route, here.faults)


def connect_receiver(sock: socket.socket, here: EndPools, part: KVPart | None = None) -> Receiver:
    """The receiving end over the other end of the socketpair; see `connect_sender`."""
    cache = here.cache
    layout = layout_of(cache, part)
    with _meeting(sock, here.faults) as link, handed_memory(sock) as (fd, process):
        shape, hello = _expect(link, RingShape), _expect(link, Hello)
        link.send(ReceiverPool(layout, cache.num_blocks, _shared(cache)))
        layout.check(hello.layout)
        ring = None
        if not _expect(link, TransferWay).direct:
            ring = _ring(layout, here, fd, (shape.num_slots, shape.slot_bytes))
        kept = os.dup(process) if process >= 0 else -1
        summer = Summer(BlockSums(layout, cache.raw.device), cache.raw)
        return Receiver(link, layout, cache, here.steps, ring, kept, summer, here.faults)


@contextlib.contextmanager
def _meeting(sock: socket.socket, faults: LinkFaults) -> Iterator[TransferSocket]:
    """A link while the ends meet; any failure closes it and becomes a TransferError."""
    link = TransferSocket(sock)
    try:
        faults.meet()
        sock.settimeout(MEETING_S)
        yield link
        sock.settimeout(None)
    except BaseException as error:
        link.close()
        if isinstance(error, OSError | ValueError | RuntimeError):
            raise TransferError(f"the ends of a link did not meet: {error}") from error
        raise


@contextlib.contextmanager
def _memory(size_bytes: int) -> Iterator[int]:
    """A memfd; processes that mapped or received it keep it."""
    fd = new_memory(size_bytes)
    try:
        yield fd
    finally:
        os.close(fd)


def _hand_ring(sock: socket.socket, memory: int) -> None:
    """Hand over the ring's memory, and a pidfd of this process where the kernel has them."""
    with contextlib.ExitStack() as stack:
        fds = [memory]
        with contextlib.suppress(OSError, AttributeError):
            fds.append(os.pidfd_open(os.getpid()))
            stack.callback(os.close, fds[-1])
        hand_memory(sock, *fds)


def _expect(link: TransferSocket, kind: type[Expected]) -> Expected:
    message = link.receive()
    if isinstance(message, kind):
        return message
    found = "nothing" if message is None else type(message).__name__
    raise TransferError(f"the other end of the link sent {found} instead of {kind.__name__}")


def _ring(
    layout: Layout, here: EndPools, fd: int, sizes: tuple[int, int]
) -> tuple[SharedRing, Movers]:
    """The ring in a memfd, and the movers of blocks to it and back."""
    raw = here.cache.raw
    ring = SharedRing(fd, *sizes, raw.device)
    try:
        return ring, movers_of(layout, raw, ring.slot_bytes, here.by_torch)
    except BaseException:
        ring.close()
        raise


def _straight(layout: Layout, here: EndPools, memory: OpenedMemory, checked: bool) -> PeerRoute:
    """The route into a pool that was opened."""
    try:
        mover = PeerMover(layout, here.cache.raw, memory.address)
        return PeerRoute(layout, memory, mover, _sources(layout, here, checked))
    except BaseException:
        memory.close()
        raise


def _sources(layout: Layout, here: EndPools, checked: bool) -> Sources:
    """The sources that blocks are read from."""
    raw = here.cache.raw
    summer = Summer(BlockSums(layout, raw.device), raw) if checked else None
    host = HostRows(layout, here.host, here.cache) if here.host is not None else None
    return Sources(summer, host, here.faults)


def _shared(cache: PagedKV) -> Shared | None:
    """How another process may write into the pool; None where it may not."""
    if not cache.raw.is_cuda:
        return None
    try:
        return export(cache.raw)
    except IpcError as error:
        log.info("transfer: this pool is not shared, host memory is used: %s", error)
        return None


def _opened(shared: Shared | None, cache: PagedKV) -> OpenedMemory | None:
    if shared is None or not cache.raw.is_cuda:
        return None
    try:
        return OpenedMemory(shared, cache.raw.device)
    except IpcError as error:
        log.info("transfer: the pool there cannot be opened, host memory is used: %s", error)
        return None
