"""The two routes from pool to pool: through a ring of host memory, or straight into the pool."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch

from daemon.engine.batch.streams import WorkEvent
from daemon.engine.transfer.credits import Clearances, RingCredits
from daemon.engine.transfer.faults import LinkFaults
from daemon.engine.transfer.host_rows import HostRows
from daemon.engine.transfer.ipc import OpenedMemory
from daemon.engine.transfer.layout import WHOLE, Layout, TransferError
from daemon.engine.transfer.messages import Cleared, Freed, Message, Sent
from daemon.engine.transfer.movers import Movers, PeerMover
from daemon.engine.transfer.ring import SharedRing
from daemon.engine.transfer.rows import Spans
from daemon.engine.transfer.sums import Summed, Summer
from daemon.protocol.ring import Filled
from daemon.wire.columns import Column, Int64

FIRST_BYTES = 2 << 20
"""Bytes in a piece's first slot; each next holds twice as much: so the receiver begins soon."""


@dataclass(slots=True)
class Outgoing:
    """Blocks on their way, as the sender knows them."""

    number: int
    blocks: Column  # int32 [n], here
    targets: Column  # int32 [n], there
    fills: Column  # int32 [n]
    num_parts: int
    from_host: bool = False  # the blocks are places of the host pool
    refused: str = ""  # why nothing of it can be sent
    began_s: float = field(default_factory=time.perf_counter)
    num_queued: int = 0  # layers, of those that go one by one
    announced: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class TransferPiece:
    """A layer of a transfer's blocks, or all of them, once `after` is reached."""

    transfer: Outgoing
    layer: int
    after: WorkEvent
    last: bool


_UNSUMMED: Int64 = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class QueuedCopy:
    """A copy that was begun, the sums of its blocks, and the message about it to the receiver."""

    ended: WorkEvent
    summed: tuple[Summed, ...]
    message: Callable[[Int64], Message] | None

    def wait(self) -> Message | None:
        """The message to the receiver once the copy has ended and was summed; waits for both."""
        self.ended.synchronize()
        sums = [summed.read() for summed in self.summed]
        if self.message is None:
            return None
        return self.message(np.concatenate(sums) if sums else _UNSUMMED)


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of blocks beside the KV pool's copies: its sums, and the host pool."""

    summer: Summer | None  # None: blocks are not checked
    host: HostRows | None = None
    faults: LinkFaults = field(default_factory=LinkFaults)

    def summed(self, spans: Spans, blocks: Column, after: WorkEvent) -> tuple[Summed, ...]:
        """The sums of blocks of the KV pool, once `after` is reached."""
        return () if self.summer is None else (self.summer.of(spans, blocks, after),)

    def close(self) -> None:
        """Finish what is queued."""
        for source in (self.summer, self.host):
            if source is not None:
                source.close()


class Route(Protocol):
    """How pieces are copied."""

    direct: bool

    def begin(self, transfer: int) -> None:
        """Prepare for a transfer, before the receiver gets its `Opened`."""

    def copies(self, piece: TransferPiece) -> Iterator[QueuedCopy]:
        """Queue a piece's copies one by one, as there is room. Raises AbandonedError."""

    def hear(self, message: Message) -> None:
        """Take a message of the receiver about room. Raises TransferError for anything else."""

    def forget(self, transfer: int) -> None:
        """Forget a transfer that is over."""

    def abandon(self) -> None:
        """Raise AbandonedError in threads that wait for room."""

    def close(self) -> None:
        """Wait for all copies, and free the memory between both ends."""


class RingRoute:
    """The route over slots that the receiver empties: up to the ring's slots are in flight."""

    direct = False

    def __init__(self, layout: Layout, ring: SharedRing, movers: Movers, sources: Sources) -> None:
        self._layout, self._ring, self._movers, self._sources = layout, ring, movers, sources
        self._slots = RingCredits(ring.num_slots)

    def begin(self, transfer: int) -> None:
        """See `Route`."""

    def copies(self, piece: TransferPiece) -> Iterator[QueuedCopy]:
        """See `Route`."""
        spans, part_bytes = self._layout.spans(piece.layer), self._layout.size(piece.layer)
        most, blocks = self._ring.slot_bytes // part_bytes, piece.transfer.blocks
        first, count = 0, max(1, FIRST_BYTES // part_bytes)
        while first < len(blocks):
            some = blocks[first : first + min(count, most)]
            number = self._slots.take()
            slot = self._ring.slot(number, len(some) * part_bytes)
            message = partial(self._told, slot, (piece.transfer.number, number, piece.layer, first))
            if piece.transfer.from_host:
                assert self._sources.host is not None, "the sender has checked it"
                summed = self._sources.host.out(some, slot, piece.after)
                yield QueuedCopy(summed.ended, (summed,), message)
            else:
                sums = self._sources.summed(spans, some, piece.after)
                yield QueuedCopy(self._movers.out(spans, some, slot, piece.after), sums, message)
            first, count = first + len(some), 2 * count

    def _told(self, slot: torch.Tensor, where: tuple[int, int, int, int], sums: Int64) -> Filled:
        transfer, number, layer, first = where
        count = len(slot) // self._layout.size(layer)
        self._sources.faults.leave(slot, count)
        return Filled(
            transfer=transfer,
            slot=number,
            layer=layer,
            first=first,
            count=count,
            size_bytes=len(slot),
            sums=sums,
        )

    def hear(self, message: Message) -> None:
        """See `Route`."""
        if not isinstance(message, Freed):
            raise TransferError(f"the receiver sent {type(message).__name__}")
        self._slots.give(message.slot)

    def forget(self, transfer: int) -> None:
        """See `Route`."""

    def abandon(self) -> None:
        """See `Route`."""
        self._slots.abandon()

    def close(self) -> None:
        """See `Route`."""
        self._sources.close()
        self._movers.close()
        self._ring.close()


class PeerRoute:
    """The route straight into the receiver's pool, once no step of its own touches the blocks."""

    direct = True

    def __init__(
        self, layout: Layout, memory: OpenedMemory, mover: PeerMover, sources: Sources
    ) -> None:
        self._layout, self._memory, self._mover, self._sources = layout, memory, mover, sources
        self._clearances = Clearances()

    def begin(self, transfer: int) -> None:
        """See `Route`."""
        self._clearances.ask(transfer)

    def copies(self, piece: TransferPiece) -> Iterator[QueuedCopy]:
        """See `Route`."""
        transfer = piece.transfer
        self._clearances.wait(transfer.number)
        message = partial(Sent, transfer.number)
        if transfer.from_host:
            ended, sums = self._from_host(piece)
            yield QueuedCopy(ended, sums, message)
            return
        spans = self._layout.spans(piece.layer)
        ended = self._mover.across(spans, transfer.blocks, transfer.targets, piece.after)
        if not piece.last:
            yield QueuedCopy(ended, (), None)
            return
        whole = self._layout.spans(WHOLE)
        yield QueuedCopy(ended, self._sources.summed(whole, transfer.blocks, piece.after), message)

    def _from_host(self, piece: TransferPiece) -> tuple[WorkEvent, tuple[Summed, ...]]:
        """Copy rows of the host pool, some at a time, over a stage."""
        host, job = self._sources.host, piece.transfer
        assert host is not None, "the sender has checked it"
        ended, sums, stage = piece.after, list[Summed](), self._mover.stage()
        for first in range(0, len(job.blocks), len(stage)):
            some = job.blocks[first : first + len(stage)]
            rows = stage[: len(some)]
            ended.synchronize()  # the stage is free again
            sums.append(host.out(some, rows.view(-1), piece.after))
            sums[-1].ended.synchronize()
            ended = self._mover.push(rows, job.targets[first : first + len(stage)])
        return ended, tuple(sums)

    def hear(self, message: Message) -> None:
        """See `Route`."""
        if not isinstance(message, Cleared):
            raise TransferError(f"the receiver sent {type(message).__name__}")
        self._clearances.give(message.transfer)

    def forget(self, transfer: int) -> None:
        """See `Route`."""
        self._clearances.forget(transfer)

    def abandon(self) -> None:
        """See `Route`."""
        self._clearances.abandon()

    def close(self) -> None:
        """See `Route`."""
        self._sources.close()
        self._mover.close()
        self._memory.close()
