"""The two ways from pool to pool: through a ring of host memory, or straight into it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from daemon.engine.handoff.ipc import OpenedMemory
from daemon.engine.handoff.layout import HandoffError, Layout
from daemon.engine.handoff.messages import Cleared, Filled, Freed, Message, Sent
from daemon.engine.handoff.movers import Movers, PeerMover
from daemon.engine.handoff.ring import SharedRing
from daemon.engine.handoff.slots import Clearances, RingSlots
from daemon.engine.streams import WorkEvent
from daemon.wire.columns import Column

FIRST_BYTES = 2 << 20
"""In a piece's first slot; each next one holds twice as much, so that the receiver begins soon."""


@dataclass(slots=True)
class Transfer:
    """Blocks on their way, as the sender knows them."""

    number: int
    blocks: Column  # int32 [n], here
    targets: Column  # int32 [n], there
    fills: Column  # int32 [n]
    num_parts: int
    began_s: float = field(default_factory=time.perf_counter)
    num_queued: int = 0  # layers, of those that go one by one
    announced: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class TransferPiece:
    """A layer of a transfer's blocks, or all of them, once `after` is reached."""

    transfer: Transfer
    layer: int
    after: WorkEvent
    last: bool


Copied = tuple[WorkEvent, Message | None]
"""When some copy has ended, and what the receiver is told then."""


class Route(Protocol):
    """How pieces are copied."""

    direct: bool

    def begin(self, transfer: int) -> None:
        """The receiver is about to hear of a transfer."""

    def copies(self, piece: TransferPiece) -> Iterator[Copied]:
        """Queue a piece's copies one by one, as there is room. Raises AbandonedError."""

    def hear(self, message: Message) -> None:
        """What the receiver says of room. Raises HandoffError for anything else."""

    def forget(self, transfer: int) -> None:
        """A transfer is over."""

    def abandon(self) -> None:
        """There will be no more room."""

    def close(self) -> None:
        """Wait for all copies, and let go of the memory between both ends."""


class RingRoute:
    """Out to slots that the receiver empties: as many are on their way as the ring has."""

    direct = False

    def __init__(self, layout: Layout, ring: SharedRing, movers: Movers) -> None:
        self._layout, self._ring, self._movers = layout, ring, movers
        self._slots = RingSlots(ring.num_slots)

    def begin(self, transfer: int) -> None:
        """See `Route`."""

    def copies(self, piece: TransferPiece) -> Iterator[Copied]:
        """See `Route`."""
        spans, part_bytes = self._layout.spans(piece.layer), self._layout.size(piece.layer)
        most, blocks = self._ring.slot_bytes // part_bytes, piece.transfer.blocks
        first, count = 0, max(1, FIRST_BYTES // part_bytes)
        while first < len(blocks):
            some = blocks[first : first + min(count, most)]
            number = self._slots.take()
            slot = self._ring.slot(number, len(some) * part_bytes)
            ended = self._movers.out(spans, some, slot, piece.after)
            yield ended, Filled(piece.transfer.number, number, piece.layer, first, len(some))
            first, count = first + len(some), 2 * count

    def hear(self, message: Message) -> None:
        """See `Route`."""
        if not isinstance(message, Freed):
            raise HandoffError(f"the receiver sent {type(message).__name__}")
        self._slots.give(message.slot)

    def forget(self, transfer: int) -> None:
        """See `Route`."""

    def abandon(self) -> None:
        """See `Route`."""
        self._slots.abandon()

    def close(self) -> None:
        """See `Route`."""
        self._movers.close()
        self._ring.close()


class PeerRoute:
    """Straight into the receiver's pool, once no step of its own touches the blocks."""

    direct = True

    def __init__(self, layout: Layout, memory: OpenedMemory, mover: PeerMover) -> None:
        self._layout, self._memory, self._mover = layout, memory, mover
        self._clearances = Clearances()

    def begin(self, transfer: int) -> None:
        """See `Route`."""
        self._clearances.ask(transfer)

    def copies(self, piece: TransferPiece) -> Iterator[Copied]:
        """See `Route`."""
        transfer = piece.transfer
        self._clearances.wait(transfer.number)
        spans = self._layout.spans(piece.layer)
        ended = self._mover.across(spans, transfer.blocks, transfer.targets, piece.after)
        yield ended, Sent(transfer.number) if piece.last else None

    def hear(self, message: Message) -> None:
        """See `Route`."""
        if not isinstance(message, Cleared):
            raise HandoffError(f"the receiver sent {type(message).__name__}")
        self._clearances.give(message.transfer)

    def forget(self, transfer: int) -> None:
        """See `Route`."""
        self._clearances.forget(transfer)

    def abandon(self) -> None:
        """See `Route`."""
        self._clearances.abandon()

    def close(self) -> None:
        """See `Route`."""
        self._mover.close()
        self._memory.close()
