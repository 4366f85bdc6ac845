"""The host pool behind one KV pool: its ledger, and the swap copies that are in flight.

A sequence's copy covers its first blocks, in order. It is made while the sequence still runs, so
that its device blocks can be given away at once when others need them, and it stays when the
sequence has come back: KV is only ever appended to, so a full block needs no second copy.
"""

from collections import deque

import msgspec

from daemon.memory.block_pool import BlockPool, Ledger
from daemon.state.sequence import Residence
from daemon.wire.columns import Int32, int32

PROACTIVE, REACTIVE, RECOMPUTE, DEFER, DYNAMIC = SWAP_MODES = (
    "proactive",  # copied ahead of need, beside the steps (FastServe section 4.2)
    "reactive",  # copied at need; the step waits
    "recompute",  # victims are computed again
    "defer",  # nothing is preempted for a newcomer
    "dynamic",  # jobs beyond a limit copied out, those within it uploaded (ALISE, Algorithm 2)
)
SWAPPING = (PROACTIVE, REACTIVE, DYNAMIC)
"""The modes whose victims go to a host pool."""

_NONE = int32()


class SwapStats(msgspec.Struct, frozen=True):
    """The host pool and the swap link of one instance, as counted since it began."""

    mode: str  # one of SWAP_MODES
    host: Ledger
    num_out: int  # blocks whose copies have ended, in all
    num_in: int
    link_s: float  # the time they took, both directions
    copy_block_s: float  # expected for one block, out or in
    num_ahead: int = 0  # blocks uploaded before their sequences had a slot
    num_ahead_used: int = 0  # of them, found by their sequences
    num_reserve: int = 0  # blocks that the burst reserve asks for


class SwapSpace:
    """The host pool's ledger, and the swap copies that the next plan orders.

    Copies out and in are carried out in the order in which they are asked for, so that a block may
    be asked back before it has arrived.
    """

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.done_step = 0  # newest plan whose copies have all ended
        self._out: list[tuple[int, int]] = []  # (device block, place)
        self._in: list[tuple[int, int]] = []  # (place, device block)
        self._ordered: deque[int] = deque()  # plans whose copies have not ended

    @property
    def num_flying(self) -> int:
        """Plans whose copies are in flight."""
        return len(self._ordered)

    def copy_out(self, residence: Residence, blocks: list[int], step: int) -> None:
        """Order copies of its next blocks with the plan of `step`; the caller has checked room."""
        places = self.pool.allocate(len(blocks))
        residence.host_blocks += places
        residence.last_copy = step
        self._out += zip(blocks, places, strict=True)

    def copy_in(self, residence: Residence, first: int, blocks: list[int], step: int) -> None:
        """Order its blocks from the `first` on back into these device blocks."""
        residence.last_copy = step
        places = residence.host_blocks[first : first + len(blocks)]
        self._in += zip(places, blocks, strict=True)

    def keep(self, residence: Residence, num_blocks: int) -> None:
        """Forget all but the first `num_blocks` of its copy."""
        if len(residence.host_blocks) > num_blocks:
            forgotten = residence.host_blocks[num_blocks:]
            if residence.last_copy > self.done_step:
                self.pool.name_in_copy(forgotten, residence.last_copy)
            self.pool.release(forgotten, 0)
            del residence.host_blocks[num_blocks:]

    def take_orders(self, step: int) -> tuple[Int32, Int32, Int32, Int32]:
        """(device blocks out, host blocks for them, host blocks in, device blocks for them)."""
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
    def has_outs(self) -> bool:
        """Whether the next plan has copies to host memory."""
        return bool(self._out)

    @property
    def has_orders(self) -> bool:
        """Whether the next plan has swap copies."""
        return bool(self._out or self._in)

    def copies_done(self, step: int) -> None:
        """Note that every copy of the plans up to `step` has ended."""
        self.done_step = step
        while self._ordered and self._ordered[0] <= step:
            self._ordered.popleft()
        self.pool.copies_done(step)
