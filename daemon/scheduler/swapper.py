"""What becomes of the KV of those who give way, and how it comes back.

FastServe section 4.2 and ALISE Algorithm 2: whoever will run last leaves first. The order of the
slots is that order already: the wait before a sequence runs again is a sum over all that go before
it (ENST's T_execute, EWT's eq. 6), so it grows along the order, and a promotion (T_promote) moves
the sequence in the order itself.
"""

import math
from collections.abc import Callable

import numpy as np

from daemon.cost.copy_time import CopyTime
from daemon.memory.kv_cache import KVCache
from daemon.memory.reserve import BurstReserve
from daemon.memory.swap_space import REACTIVE, SWAPPING, SwapSpace
from daemon.scheduler.slots import SlotTable
from daemon.sequence import Sequence
from daemon.story import What
from daemon.wire.columns import Slots

MAX_RESERVE = 0.25
"""Most of the pool that is kept ready for bursts."""

LINK_SHARE = 0.5
"""Share of a step's time that copies made ahead of need may take on the link."""


class Swapper:
    """One instance's moves between device and host memory."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.reserve = BurstReserve()
        self.num_out = self.num_in = 0  # blocks whose copies have ended, in all
        self.link_s = 0.0  # how long they took, both directions
        self._returning: dict[int, tuple[int, float]] = {}  # slot: (plan that brings it, since)
        self._needed: dict[int, int] = {}  # sequence that waits: blocks of its copy
        self.empty(0, 0.0)

    def empty(self, num_host_blocks: int, copy_block_s: float) -> None:
        """A worker came or went, and with it a host pool: nothing is in it or on its way."""
        self.space = SwapSpace(num_host_blocks)
        self.copy_time = CopyTime(copy_block_s)
        self._returning.clear()
        self._needed.clear()
        self._num_needed = 0

    def here(self, order: Slots) -> Slots:
        """Those of these slots whose blocks are not on the way."""
        if not self._returning:
            return order
        away = np.zeros(int(order.max(initial=-1)) + 1, np.bool_)
        away[[slot for slot in self._returning if slot < away.size]] = True
        return order[~away[order]]

    # Leaving

    def park(
        self,
        sequence: Sequence,
        num_valid: int,
        slots: SlotTable,
        kv: KVCache,
        step: int,
        again_s: Callable[[int], float],
    ) -> None:
        """A running sequence gives way with the plan of `step`; keep what pays of its KV.

        `num_valid` tokens of it are, or will be, written by the steps before. What is copied
        already costs nothing to keep; the rest is copied now if a way out and back is predicted to
        take less than `again_s`, computing so many tokens again, and the host has room. One that
        is on its way back has its blocks in the host still.
        """
        space = self.space
        if self.mode not in SWAPPING:
            space.forget(sequence.id)
            return
        if sequence.slot in self._returning:
            sequence.parked_tokens = self.num_copied(sequence) * kv.block_size
            self._parked(sequence)
            return
        num_blocks = kv.blocks_for(num_valid)
        full = num_valid // kv.block_size
        space.keep(sequence.id, full)
        num_copied = self.num_copied(sequence)
        rest = num_blocks - num_copied
        rest_tokens = num_valid - num_copied * kv.block_size
        if rest > 0 and self.copy_time.round_trip_s(rest) < again_s(rest_tokens):
            rest = self._make_room(rest, sequence, slots)
            if rest:
                self._copy_out(sequence, num_copied, num_copied + rest, kv, step)
        sequence.parked_tokens = min(num_valid, self.num_copied(sequence) * kv.block_size)
        self._parked(sequence)

    def _parked(self, sequence: Sequence) -> None:
        """Its copy is all that there is of it now."""
        self._needed[sequence.id] = self.num_copied(sequence)
        self._num_needed += self._needed[sequence.id]

    def leave(self, sequence: Sequence) -> None:
        """A sequence ended or moves elsewhere: its copy is of no use."""
        self._num_needed -= self._needed.pop(sequence.id, 0)
        self.space.forget(sequence.id)
        sequence.parked_tokens = 0

    def room(self) -> float:
        """Host blocks for those who give way; infinite where nothing of them is kept.

        Copies of those that run may be forgotten for it.
        """
        pool = self.space.pool
        if self.mode not in SWAPPING:
            return math.inf
        return pool.num_blocks - pool.num_fenced - self._num_needed

    def num_copied(self, sequence: Sequence) -> int:
        """Blocks of it that the host has, or is about to have."""
        return len(self.space.places(sequence.id))

    # Coming back

    def bring(self, sequence: Sequence, kv: KVCache, first: int, step: int, now: float) -> None:
        """Order the parked blocks from the `first` on into the blocks of its new slot."""
        slot = sequence.slot
        num_blocks = kv.blocks_for(sequence.parked_tokens)
        blocks = kv.table.blocks(slot)[first:num_blocks].tolist()
        self.space.copy_in(sequence.id, first, blocks, step)
        kv.pool.name_in_copy(blocks, step)
        sequence.swaps += 1
        if self.mode != REACTIVE:
            self._returning[slot] = (step, now)

    def is_returning(self, slot: int) -> bool:
        """Whether a slot waits for its blocks."""
        return slot in self._returning

    def stop_waiting(self, slot: int) -> bool:
        """A slot is vacated: wait no more for its blocks; whether they were still on the way."""
        return self._returning.pop(slot, None) is not None

    def copies_done(self, step: int, slots: SlotTable, now: float) -> None:
        """Every copy of the plans up to `step` has ended."""
        self.space.copies_done(step)
        for slot, (brought_by, since_s) in list(self._returning.items()):
            if brought_by <= step:
                del self._returning[slot]
                sequence = slots.member(slot)
                sequence.swap_s += now - since_s
                sequence.story.add(now, What.RESTORED)

    def seated(self, sequence: Sequence, block_size: int) -> None:
        """It computes on: of its copy, only full blocks stay as they are."""
        self._num_needed -= self._needed.pop(sequence.id, 0)
        self.space.keep(sequence.id, sequence.parked_tokens // block_size)

    def observe(self, num_out: int, out_s: float, num_in: int, in_s: float) -> None:
        """Learn from copies that ended."""
        self.copy_time.observe(num_out, out_s, num_in, in_s)
        self.num_out += num_out
        self.num_in += num_in
        self.link_s += out_s + in_s

    # Ahead of need

    def copy_ahead(
        self, slots: SlotTable, kv: KVCache, step: int, step_s: float, now: float
    ) -> None:
        """Copy blocks of those that would leave first, until enough could be given away at once.

        Enough is the reserve for bursts and a block for each that runs. No more is copied than
        fits beside a step of `step_s` on the link.
        """
        if self.space.num_flying or not self.space.pool.num_available:
            return
        wanted = self._reserve_blocks(kv, slots.num_running, now) - kv.pool.num_available
        if wanted <= 0:
            return
        block_s = max(self.copy_time.out_s, 1e-9)
        budget = max(1, int(LINK_SHARE * step_s / block_s))
        for slot in slots.order()[::-1].tolist():
            if slot in self._returning:
                continue
            sequence = slots.member(slot)
            full = int(slots.computed[slot]) // kv.block_size
            num_copied = self.num_copied(sequence)
            count = min(full - num_copied, budget, self.space.pool.num_available)
            if count > 0:
                self._copy_out(sequence, num_copied, num_copied + count, kv, step)
                budget -= count
            wanted -= num_copied + max(0, count)
            if wanted <= 0 or budget <= 0:
                return

    def _copy_out(self, sequence: Sequence, first: int, end: int, kv: KVCache, step: int) -> None:
        """Order copies of some of a running sequence's blocks."""
        blocks = kv.table.blocks(sequence.slot)[first:end].tolist()
        self.space.copy_out(sequence.id, blocks, step)
        kv.pool.name_in_copy(blocks, step)

    def _reserve_blocks(self, kv: KVCache, num_running: int, now: float) -> int:
        most = int(MAX_RESERVE * kv.pool.num_blocks)
        return min(most, self.reserve.num_blocks(now) + num_running)

    def _make_room(self, num_blocks: int, leaver: Sequence, slots: SlotTable) -> int:
        """Places that the host has, up to so many, once copies of those that leave last are
        forgotten. They run, so that nothing is lost with their copies.
        """
        pool = self.space.pool
        if pool.num_available < num_blocks:
            for slot in slots.order().tolist():
                member = slots.member(slot)
                if slot not in self._returning and member is not leaver:
                    self.space.forget(member.id)
                    if pool.num_available >= num_blocks:
                        break
        return min(num_blocks, pool.num_available)

    def awaited(self, step: int) -> int:
        """The plan whose copies the plan of `step` awaits; 0: none."""
        return step if self.mode == REACTIVE and self.space.has_orders else 0
