"""Residency: the place of each sequence's KV: on the device, in host memory, or on the way back.

FastServe section 4.2 and ALISE Algorithm 2: the sequence that will run last leaves first. The order
of the slots is that order already: the wait before a sequence runs again is a sum over all that go
before it (ENST's T_execute, EWT's eq. 6), so it grows along the order, and a promotion (T_promote)
moves the sequence in the order itself.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np

from daemon.cost.copy_time import CopyTime
from daemon.cost.step_time import StepTimeModel
from daemon.memory.kv_cache import KVCache
from daemon.memory.reserve import BurstReserve
from daemon.memory.swap_space import (
    DYNAMIC,
    PROACTIVE,
    REACTIVE,
    SWAPPING,
    SwapSpace,
    SwapStats,
)
from daemon.scheduler.dynamic_swap import JobLimit
from daemon.scheduler.remote_kv import Fetch, RemoteKVs
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.uploads import UPLOAD_SHARE, Uploads
from daemon.state.remote_kv import RemoteKV
from daemon.state.sequence import NEVER, Sequence, Where
from daemon.state.story import What
from daemon.wire.columns import Int32, Slots, int32

MAX_RESERVE = 0.25
"""The largest share of the pool kept ready for bursts."""

AWAITED_SHARE = 0.05
"""The share of a step's time that copies back may take for which the step waits: a sequence that
sat out the step would wait for all of it."""

LINK_SHARE = 0.5
"""The share of a step's time that copies ahead of need may take on the link."""


# To look a member up in its enum takes as long as a call.
_NOWHERE, _DEVICE, _HOST, _RETURNING = Where.NOWHERE, Where.DEVICE, Where.HOST, Where.RETURNING
_OFF_DEVICE = (Where.NOWHERE, Where.HOST, Where.AWAY)
_NONE = int32()
_NO_ORDERS = _NONE, _NONE, _NONE, _NONE, 0


class Residency:
    """The one place that changes a sequence's `Residence`, and that orders swap copies."""

    def __init__(self, mode: str, instance: int = 0) -> None:
        self.mode = mode
        self.remote_kvs = RemoteKVs(instance, self._move)
        self.reserve = BurstReserve()
        self.space = SwapSpace(0)
        self.copy_time = CopyTime(0.0)
        self.uploads = Uploads()
        self.num_out = self.num_in = 0  # as in `SwapStats`
        self.link_s = 0.0
        self._returning: dict[int, Sequence] = {}  # RETURNING ones, by slot
        self._held: set[int] = set()  # slots that no further step computes, as they are to leave
        self._awaits = False  # whether steps rely on the next plan's copies, whatever the mode
        self._unplanned: set[int] = set()  # slots for which the next plan brings KV
        self._num_reserve = 0  # blocks that the newest plan kept ready for bursts
        self.num_parked_blocks = 0  # host blocks of HOST ones

    def reset(
        self, sequences: Iterable[Sequence], num_host_blocks: int, copy_block_s: float
    ) -> None:
        """Replace the host pool by an empty one, as a worker began or died: all KV is gone."""
        self.remote_kvs.reset()
        self.uploads.reset()
        for sequence in sequences:
            if sequence.residence.where is not Where.NOWHERE:
                self.lose(sequence)
        self.space = SwapSpace(num_host_blocks)
        self.copy_time = CopyTime(copy_block_s)

    def stats(self) -> SwapStats:
        """The counts of the host pool and the swap link; a copy."""
        return SwapStats(
            mode=self.mode,
            host=self.space.pool.ledger(),
            num_out=self.num_out,
            num_in=self.num_in,
            link_s=self.link_s,
            copy_block_s=self.copy_time.round_trip_s(1) / 2,
            num_ahead=self.uploads.num_ordered,
            num_ahead_used=self.uploads.num_used,
            num_reserve=self._num_reserve,
        )

    def _move(self, sequence: Sequence, where: Where) -> None:
        """Change a state and the counts of it; no other assignment to `where`."""
        residence = sequence.residence
        before = residence.where
        if before is _HOST:
            self.num_parked_blocks -= len(residence.host_blocks)
        elif before is _RETURNING:
            del self._returning[sequence.slot]
            self.remote_kvs.forget_fetch(sequence)
            residence.transfer = 0
        if (self._held or self._unplanned) and where in _OFF_DEVICE:
            self._held.discard(sequence.slot)
            self._unplanned.discard(sequence.slot)
        residence.where = where
        if where is _HOST:
            self.num_parked_blocks += len(residence.host_blocks)
        elif where is _RETURNING:
            self._returning[sequence.slot] = sequence

    def _has_device(self, sequence: Sequence) -> None:
        """Note that its device blocks have all its KV; host memory may have some too."""
        self._move(sequence, Where.BOTH if sequence.residence.host_blocks else Where.DEVICE)

    # On the device

    def on_device(self, order: Slots) -> Slots:
        """The slots that steps may compute: not returning, and not to leave."""
        if not self.any_still:
            return order
        away = np.zeros(int(order.max(initial=-1)) + 1, np.bool_)
        still = (*self._returning, *self._held)
        away[[slot for slot in still if slot < away.size]] = True
        return order[~away[order]]

    @property
    def any_still(self) -> bool:
        """Whether any sequence with a slot is not computed."""
        return bool(self._returning or self._held)

    @property
    def is_moving(self) -> bool:
        """Whether the next plan moves KV, or waits for what is moved; copies may be in flight."""
        coming = self.remote_kvs.fetches or self.remote_kvs.coming
        return bool(
            self.any_still or self._unplanned or self._awaits or self.space.has_orders or coming
        )

    def is_returning(self, sequence: Sequence) -> bool:
        """Whether it has a slot and waits for copies to its blocks."""
        return sequence.residence.where is _RETURNING

    # Leaving the device

    def keeps(self, sequence: Sequence) -> bool:
        """Whether host memory may keep the KV of a sequence that is preempted."""
        return self.mode in SWAPPING and sequence.residence.remote_kv is None

    def park(
        self,
        sequence: Sequence,
        num_valid: int,
        slots: SlotTable,
        kv: KVCache,
        step: int,
        recompute_s: Callable[[int], float],
    ) -> None:
        """Move a preempted sequence's KV to host memory, as far as that pays, with the plan of
        `step`.

        Earlier steps write `num_valid` tokens of it. What is copied already costs nothing to keep;
        the rest is copied now if the round trip is expected to take less than `recompute_s` of its
        tokens, and host memory has room. A returning sequence still has its blocks in host memory.
        One that leaves before the plan that brings its KV keeps its host copy: a plan's copies out
        come first.
        """
        residence = sequence.residence
        if residence.remote_kv is not None:
            self.lose(sequence)
            return
        cut_back = kv.has_states and num_valid < slots.computed.item(sequence.slot)
        if not self.keeps(sequence) or cut_back:
            self.forget(sequence)
            return
        if kv.has_windows:
            self._park_whole(sequence, num_valid, slots, kv, step, recompute_s)
        elif residence.where is Where.RETURNING:
            residence.parked_tokens = len(residence.host_blocks) * kv.block_size
        else:
            if not self.awaits_plan(sequence):
                self._copy_rest(sequence, num_valid, slots, kv, step, recompute_s)
            num_copied = len(residence.host_blocks) * kv.block_size
            residence.parked_tokens = min(num_valid, num_copied)
        self._move(sequence, Where.HOST if residence.host_blocks else Where.NOWHERE)

    def _park_whole(
        self,
        sequence: Sequence,
        num_valid: int,
        slots: SlotTable,
        kv: KVCache,
        step: int,
        recompute_s: Callable[[int], float],
    ) -> None:
        """As `park`, of layers of several kinds: all that going on needs, or nothing."""
        residence = sequence.residence
        if residence.where is _RETURNING:  # host memory has it still
            return
        self.space.keep(residence, kv.num_lasting(num_valid))
        blocks = kv.blocks_to_move(sequence.slot, num_valid)
        if blocks and not self.awaits_plan(sequence):
            rest = blocks[len(residence.host_blocks) :]
            copies_s = self.copy_time.out_s * len(rest) + self.copy_time.in_s * len(blocks)
            pays = copies_s < recompute_s(num_valid)
            if pays and self._make_room(len(rest), sequence, slots) == len(rest):
                self.space.copy_out(residence, rest, step)
                kv.pool.name_in_copy(rest, step)
                residence.parked_tokens = num_valid
                return
        self.space.keep(residence, 0)
        residence.parked_tokens = 0

    def _copy_rest(
        self,
        sequence: Sequence,
        num_valid: int,
        slots: SlotTable,
        kv: KVCache,
        step: int,
        recompute_s: Callable[[int], float],
    ) -> None:
        """Copy what host memory lacks of a leaver's first `num_valid` tokens, if it pays."""
        residence = sequence.residence
        self.space.keep(residence, num_valid // kv.block_size)
        num_copied = len(residence.host_blocks)
        rest = kv.blocks_for(num_valid) - num_copied
        rest_tokens = num_valid - num_copied * kv.block_size
        if rest > 0 and self.copy_time.round_trip_s(rest) < recompute_s(rest_tokens):
            rest = self._make_room(rest, sequence, slots)
            if rest:
                self._copy_out(sequence, rest, kv, step)

    def forget(self, sequence: Sequence) -> None:
        """Drop the KV of a sequence that ends or is computed again."""
        residence = sequence.residence
        if residence.remote_kv is not None:
            self.remote_kvs.drop(sequence)
        self._move(sequence, _NOWHERE)
        if residence.host_blocks:
            self.space.keep(residence, 0)
        residence.parked_tokens = 0

    def lose(self, sequence: Sequence) -> None:
        """Drop this instance's KV of a sequence that waits or leaves its slot; remote KV elsewhere
        stays.
        """
        remote_kv = sequence.residence.remote_kv
        if remote_kv is None or not remote_kv.blocks:
            self.forget(sequence)
        else:
            self._move(sequence, Where.AWAY)
            sequence.residence.parked_tokens = remote_kv.num_tokens

    def host_room(self) -> float:
        """Host blocks that victims may fill, copies of running sequences counted as free; infinite
        where no KV of victims is kept.
        """
        pool = self.space.pool
        if self.mode not in SWAPPING:
            return math.inf
        kept = self.num_parked_blocks + self.remote_kvs.num_places
        return pool.num_blocks - pool.num_fenced - kept

    def again_s(self, block_size: int, blocks_each: float, step_time: StepTimeModel) -> float:
        """The time that recomputing a victim's `block_size` tokens adds to a step, which take so
        many blocks; 0 where victims are copied.
        """
        computed_s = step_time.chunk_s(block_size)
        copied = self.mode in SWAPPING and self.space.pool.num_blocks > 0
        return 0.0 if copied and blocks_each * self.copy_time.in_s <= computed_s else computed_s

    def moves_s(self, sequence: Sequence, num_again: int, step_time: StepTimeModel) -> float:
        """The time of a sequence's copies out and in, or of twice its recomputation if longer;
        `num_again`: the tokens computed again, where it had begun.
        """
        moves_s = 0.0
        if copied := sequence.residence.host_blocks:
            moves_s = self.copy_time.round_trip_s(len(copied))
        if sequence.num_output_tokens:
            moves_s = max(moves_s, 2.0 * step_time.chunk_s(num_again))
        return moves_s

    # Coming back

    def await_plan(self, sequence: Sequence) -> None:
        """Note that the next plan brings KV of a running sequence."""
        self._unplanned.add(sequence.slot)

    def awaits_plan(self, sequence: Sequence) -> bool:
        """Whether the next plan brings KV of a running sequence."""
        return sequence.slot in self._unplanned

    def take_orders(self, step: int) -> tuple[Int32, Int32, Int32, Int32, int]:
        """The swap copies of the plan of `step`, as `SwapSpace.take_orders`, and the plan whose
        copies that plan awaits; 0: none.
        """
        self._unplanned.clear()
        awaits, self._awaits = self._awaits or self.mode == REACTIVE, False
        if not self.space.has_orders:
            return _NO_ORDERS
        return *self.space.take_orders(step), step if awaits else 0

    def admit(
        self,
        sequence: Sequence,
        kv: KVCache,
        fetch_from: int,
        step: int,
        step_time: StepTimeModel,
        now: float,
    ) -> None:
        """Bring the KV of a sequence that got a slot and blocks: with the plan of `step`, blocks
        from number `fetch_from` on are copied back from host memory, none where that is negative.

        It sits out the steps until they are there, unless so few are missing that its first step
        awaits them.

        Since it computes on, only full blocks of its copy stay as they are.
        """
        residence = sequence.residence
        if residence.remote_kv is not None:
            self._open(sequence, residence.remote_kv, kv, fetch_from, now)
            return
        if not residence.host_blocks:
            self._move(sequence, _DEVICE)
            return
        num_kept = kv.num_lasting(residence.parked_tokens)
        where = Where.BOTH if num_kept else _DEVICE
        if fetch_from >= 0:
            blocks = kv.blocks_to_move(sequence.slot, residence.parked_tokens)[fetch_from:]
            self.space.copy_in(residence, fetch_from, blocks, step)
            kv.pool.name_in_copy(blocks, step)
            sequence.swaps += 1
            copy_s = self.copy_time.in_s * len(blocks)
            is_short = copy_s <= AWAITED_SHARE * step_time.mean_s and not self.space.has_outs
            if self.mode != REACTIVE and not is_short:
                where = Where.RETURNING
                residence.fetched_by, residence.fetched_s = step, now
            else:
                self.await_plan(sequence)
                self._awaits = True
        self._move(sequence, where)
        if not (kv.has_windows and where is _RETURNING):
            self.space.keep(residence, num_kept)

    def on_copied(
        self,
        kv: KVCache,
        step: int,
        now: float,
        num_out: int,
        out_s: float,
        num_in: int,
        in_s: float,
    ) -> None:
        """Note that every copy of the plans up to `step` has ended; learn from the newest."""
        self.uploads.arrived(step, kv.pool)
        kv.pool.copies_done(step)
        self.copy_time.observe(num_out, out_s, num_in, in_s)
        self.num_out += num_out
        self.num_in += num_in
        self.link_s += out_s + in_s
        self.space.copies_done(step)
        for sequence in list(self._returning.values()):
            if sequence.residence.fetched_by <= step:
                if kv.has_windows:
                    num_kept = kv.num_lasting(sequence.residence.parked_tokens)
                    self.space.keep(sequence.residence, num_kept)
                self._has_device(sequence)
                sequence.swap_s += now - sequence.residence.fetched_s
                sequence.story.add(now, What.RESTORED)

    # Between instances

    def hold(self, sequence: Sequence) -> None:
        """Have no further step compute a running sequence, as it is to leave."""
        self._held.add(sequence.slot)

    def release(self, sequence: Sequence) -> None:
        """Have steps compute a sequence again that stays after all."""
        self._held.discard(sequence.slot)

    def leave_remote_kv(
        self, sequence: Sequence, num_valid: int, kv: KVCache, is_computed: bool = False
    ) -> None:
        """Make remote KV of a running sequence's first `num_valid` tokens, before it leaves: it
        owns their blocks in place of the slot, which has none any more. `is_computed`: see
        `RemoteKV`.
        """
        self.forget(sequence)
        blocks = kv.hand_over(sequence.slot, num_valid)
        if blocks:
            here = self.remote_kvs.instance
            remote_kv = RemoteKV(here, kv.pool, blocks, num_valid, is_computed=is_computed)
            self.remote_kvs.keep(sequence, remote_kv)

    def leave_waiting_remote_kv(self, sequence: Sequence) -> None:
        """Make remote KV of what host memory has of a waiting sequence, if it has anything."""
        residence = sequence.residence
        if residence.where is not Where.HOST:
            return
        num_tokens = residence.parked_tokens
        self._move(sequence, Where.NOWHERE)
        places, residence.host_blocks = residence.host_blocks, []
        pool = self.space.pool
        if residence.last_copy > self.space.done_step:
            pool.name_in_copy(places, residence.last_copy)
        here = self.remote_kvs.instance
        self.remote_kvs.keep(sequence, RemoteKV(here, pool, places, num_tokens, from_host=True))

    def come_home(self, sequence: Sequence) -> None:
        """Make the remote KV of a sequence queued here, if in this host pool, its copy again."""
        remote_kv = self.remote_kvs.take_home(sequence)
        if remote_kv is not None:
            residence = sequence.residence
            residence.host_blocks, residence.last_copy = remote_kv.blocks, 0
            self._move(sequence, Where.HOST)

    def _open(
        self, sequence: Sequence, remote_kv: RemoteKV, kv: KVCache, fetch_from: int, now: float
    ) -> None:
        """Fetch the remote KV of a sequence that got a slot and blocks, if it is needed."""
        residence = sequence.residence
        if fetch_from < 0:
            self.remote_kvs.drop(sequence)
            self._move(sequence, Where.DEVICE)
            return
        targets = kv.blocks_to_move(sequence.slot, remote_kv.num_tokens)[fetch_from:]
        self.remote_kvs.fetches.append(Fetch(sequence, remote_kv, fetch_from, targets))
        residence.fetched_by, residence.fetched_s = NEVER, now
        self._move(sequence, Where.RETURNING)

    def landed(self, sequence: Sequence) -> None:
        """Note that the transfer that a sequence waited for is over."""
        self.remote_kvs.drop(sequence)
        self._move(sequence, Where.DEVICE)

    # Ahead of need

    @property
    def copies_ahead(self) -> bool:
        """Whether the swap mode copies ahead of need, and there is host memory to copy to."""
        return self.mode in (PROACTIVE, DYNAMIC) and self.space.pool.num_blocks > 0

    def copy_ahead(
        self,
        slots: SlotTable,
        kv: KVCache,
        step: int,
        step_time: StepTimeModel,
        now: float,
        limit: JobLimit | None,
    ) -> None:
        """Copy blocks of sequences that would leave first, until enough could be freed at once; of
        those beyond a `limit`, where there is one.

        Enough is the reserve for bursts and a block for each running sequence. No more is copied
        than fits beside a step on the link. Blocks that take longer to fetch than to compute again
        can be freed without a copy: with one, each of many returning sequences would wait for all.
        """
        pool = self.space.pool
        if self.space.num_flying or not pool.num_available or self._awaits:
            return
        if limit is None:
            leavers = slots.order()[::-1].tolist()
            wanted = self._reserve_blocks(kv, slots.num_running, now) - kv.pool.num_available
        else:
            leavers, wanted = limit.offloads, kv.pool.num_blocks
        if wanted <= 0:
            return
        block_s = max(self.copy_time.out_s, 1e-9)
        budget = max(1, int(LINK_SHARE * step_time.mean_s / block_s))
        for slot in leavers:
            if slot in self._returning:
                continue
            sequence = slots.member(slot)
            computed = int(slots.computed[slot])
            full, whole = kv.num_lasting(computed), computed // kv.block_size * kv.block_size
            pays = self.copy_time.in_s * full <= step_time.prefill_s(whole)
            num_safe = len(sequence.residence.host_blocks) if pays else full
            count = min(full - num_safe, budget, pool.num_available)
            if count > 0:
                self._copy_out(sequence, count, kv, step)
                self._has_device(sequence)
                budget -= count
            wanted -= num_safe + max(0, count)
            if wanted <= 0 or budget <= 0:
                return

    def upload_ahead(
        self,
        candidates: Iterable[Sequence],
        num_running: int,
        kv: KVCache,
        step: int,
        step_time: StepTimeModel,
        share: float = UPLOAD_SHARE,
    ) -> None:
        """Upload KV of waiting sequences, which come in their order, while the link idles, into
        blocks that are free and that no running sequence needs meanwhile: a share of the pool.
        """
        if self.space.has_orders or self.space.num_flying:
            return
        # What is uploaded can be given up at once, but for the step in which it is on its way.
        unneeded = min(kv.pool.num_free - kv.num_spare, kv.num_unreserved)
        room = unneeded - num_running // kv.block_size
        block_s = max(self.copy_time.in_s, 1e-9)
        most = min(room, max(1, int(LINK_SHARE * step_time.mean_s / block_s)))
        if most > 0:
            self.uploads.order(candidates, kv, self.space, step, most, share)

    def _copy_out(self, sequence: Sequence, count: int, kv: KVCache, step: int) -> None:
        """Order copies of the next `count` of a running sequence's blocks."""
        first = len(sequence.residence.host_blocks)
        blocks = kv.lasting(sequence.slot, first, count)
        self.space.copy_out(sequence.residence, blocks, step)
        kv.pool.name_in_copy(blocks, step)

    def kept_at(self, kv: KVCache, num_running: int, now: float, sure: bool) -> int:
        """The blocks that a plan keeps available by copies ahead; `sure`: it is made now."""
        if sure:
            return self._reserve_blocks(kv, num_running, now)
        reserve, kept = self.reserve, self._num_reserve  # it is asked as if for the first time
        self.reserve = BurstReserve.restored(reserve.state())
        would_keep = self._reserve_blocks(kv, num_running, now)
        self.reserve, self._num_reserve = reserve, kept
        return would_keep

    def _reserve_blocks(self, kv: KVCache, num_running: int, now: float) -> int:
        most = int(MAX_RESERVE * kv.pool.num_blocks)
        self._num_reserve = min(most, self.reserve.num_blocks(now) + num_running)
        return self._num_reserve

    def _make_room(self, num_blocks: int, leaver: Sequence, slots: SlotTable) -> int:
        """Host blocks available, up to `num_blocks`, once copies of sequences that leave last are
        forgotten. These run, so nothing is lost with their copies.
        """
        pool = self.space.pool
        if pool.num_available < num_blocks:
            for slot in slots.order().tolist():
                member = slots.member(slot)
                if slot not in self._returning and member is not leaver:
                    self.space.keep(member.residence, 0)
                    self._has_device(member)
                    if pool.num_available >= num_blocks:
                        break
        return min(num_blocks, pool.num_available)
