"""Host memory behind one KV pool: whose blocks are copied there, and which copies are on the way.

A sequence's copy covers its first blocks, in order. It is made while the sequence still runs, so
that its device blocks can be given away at once when others need them, and it stays when the
sequence has come back: KV is only ever appended to, so a full block needs no second copy.
"""

from collections import deque
from dataclasses import dataclass, field

from daemon.memory.block_pool import BlockPool
from daemon.wire.columns import Int32, int32

PROACTIVE, REACTIVE, RECOMPUTE, DEFER = SWAP_MODES = (
    "proactive",  # copied ahead of need, beside the steps (FastServe section 4.2)
    "reactive",  # copied at need; the step waits
    "recompute",  # victims are computed again
    "defer",  # nobody gives way to a newcomer
)
SWAPPING = (PROACTIVE, REACTIVE)
"""The modes whose victims go to a host pool."""

_NONE = int32()


@dataclass(slots=True)
class HostCopy:
    """One sequence's blocks in the host pool."""

    places: list[int] = field(default_factory=list)  # of its first blocks, in order
    last_copy: int = 0  # newest plan that orders a copy to or from any of them


class SwapSpace:
    """The host pool's ledger, and the swap copies of the plan that is being made.

    Copies out and in are carried out in the order in which they are asked for, so that a block may
    be asked back before it has arrived.
    """

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.done_step = 0  # newest plan whose copies have all ended
        self._copies: dict[int, HostCopy] = {}  # by sequence
        self._out: list[tuple[int, int]] = []  # (device block, place)
        self._in: list[tuple[int, int]] = []  # (place, device block)
        self._ordered: deque[int] = deque()  # plans whose copies have not ended

    @property
    def num_flying(self) -> int:
        """Plans whose copies are on the way."""
        return len(self._ordered)

    def places(self, sequence: int) -> list[int]:
        """Where its first blocks are copied, or are about to be."""
        copy = self._copies.get(sequence)
        return copy.places if copy is not None else []

    def copy_out(self, sequence: int, blocks: list[int], step: int) -> None:
        """Order copies of its next blocks with the plan of `step`; the caller has checked room."""
        copy = self._copies.setdefault(sequence, HostCopy())
        places = self.pool.allocate(len(blocks))
        copy.places += places
        copy.last_copy = step
        self._out += zip(blocks, places, strict=True)

    def copy_in(self, sequence: int, first: int, blocks: list[int], step: int) -> None:
        """Order its blocks from the `first` on back into these device blocks."""
        copy = self._copies[sequence]
        copy.last_copy = step
        self._in += zip(copy.places[first : first + len(blocks)], blocks, strict=True)

    def keep(self, sequence: int, num_blocks: int) -> None:
        """Forget all but the first `num_blocks` of its copy."""
        copy = self._copies.get(sequence)
        if copy is not None and len(copy.places) > num_blocks:
            self._release(copy.places[num_blocks:], copy.last_copy)
            del copy.places[num_blocks:]
            if not copy.places:
                del self._copies[sequence]

    def forget(self, sequence: int) -> None:
        """Its copy is of no use any more."""
        self.keep(sequence, 0)

    def take_orders(self, step: int) -> tuple[Int32, Int32, Int32, Int32]:
        """(blocks out, their places, places in, their blocks) for the plan of `step`."""
        out, back = self._out, self._in
        if not out and not back:
            return _NONE, _NONE, _NONE, _NONE
        self._ordered.append(step)
        columns = (
            int32([block for block, _ in out]),
            int32([place for _, place in out]),
            int32([place for place, _ in back]),
            int32([block for _, block in back]),
        )
        self._out, self._in = [], []
        return columns

    @property
    def has_orders(self) -> bool:
        """Whether the plan that is being made has swap copies."""
        return bool(self._out or self._in)

    def copies_done(self, step: int) -> None:
        """Every copy of the plans up to `step` has ended."""
        self.done_step = step
        while self._ordered and self._ordered[0] <= step:
            self._ordered.popleft()
        self.pool.copies_done(step)

    def _release(self, places: list[int], last_copy: int) -> None:
        if last_copy > self.done_step:
            self.pool.name_in_copy(places, last_copy)
        self.pool.release(places, 0)
