"""Pace: the bound on pauses of streams that have begun, and its demands on other sequences.

A preempted stream pauses for `max_pause_s` at most; then it resumes whatever waits, and runs for a
time slice before it may be preempted again. Every sequence that gets a slot has a time slice.

This can be kept. Streams preempted within the length of a slice all had slots when it began, since
none is preempted within its own slice; so those that come due within it fit into the pool together.
Only slices that others began meanwhile could keep them out, and none begins (`leaves_room`) unless
it fits beside all running slices and all streams that come due before it ends, with their growth
until then.

A stream is counted where its answer is decoded: from elsewhere as soon as it is certain to come
(`num_coming`), and no longer where only its prompt is computed (`num_leaving`).

A slice is at least as long as its copies, and not over before a resumed stream has a token: streams
whose slices were shorter than their return would preempt each other for ever.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from daemon.memory.kv_cache import KVCache
from daemon.scheduler.order import Order
from daemon.scheduler.residency import Residency
from daemon.state.sequence import Sequence
from daemon.wire.columns import Bools, Slots

SLICE_SHARE = 0.5
"""A time slice, as a share of `max_pause_s`; longer where its copies out and in take longer, or
twice its recomputation: at least half of each slice goes on with the answer."""

LEAST_SLICE = 0.5
"""The share of a slice, or the time of its copies, in which it is never preempted; after that a
stream whose pause has to end may take the place, if there is no other: running sequences have grown
since its preemption by a block or two, which is much of a small pool."""

MOST_POOLS = 2.5
"""No stream begins while all that have begun are expected to need more pools than this, after the
stretches for which they are worth going on: at least a third of that time is left to each, by its
slices, and where answers are alike few streams preempt others."""

AGAIN_SHARE = 0.1
"""The share of time that recomputing resumed streams may take: fewer streams begin, so that fewer
resume within `max_pause_s`."""

_SOON = 4
"""Streams that come due next, whose KV is worth having back before."""

_LEAD_STEPS = 2.0
"""Steps before the end of its pause at which a stream is due: one to plan, one to compute it."""


_Place = tuple[float, int, Sequence]  # (paused since, arrival, sequence)


class Elsewhere(Protocol):
    """The instances that decode the answers of prompts computed here."""

    def keeps(self, sequence: Sequence) -> bool | None:
        """Whether one of them can keep a further stream; None: its answer is decoded here."""

    def began(self, sequence: Sequence) -> None:
        """Count a sequence that has begun here where its answer will be decoded."""

    def stays(self, sequence: Sequence) -> None:
        """Count a preempted sequence there no more: it is not certain to come."""


class StreamPace:
    """The pauses of one instance's streams, and the time slices of running sequences."""

    def __init__(self, order: Order, residency: Residency) -> None:
        slots = order.slots
        self._order = order
        self._residency = residency
        self.max_pause_s = 0.0  # 0: the policy sets no bound
        self._slots = slots
        self._slice_ends_s = np.zeros(slots.max_slots)
        self._least_ends_s = np.zeros(slots.max_slots)  # of the part without preemption
        self._came_back = np.zeros(slots.max_slots, np.bool_)  # after a pause
        self._paused: list[_Place] = []  # waiting streams, in the order in which they come due
        self.num_coming = self.num_coming_tokens = 0  # that run elsewhere and will go on here
        self.num_leaving = self.num_leaving_tokens = 0  # that run here and are counted elsewhere
        self.elsewhere: Elsewhere | None = None  # of several instances, where answers are decoded

    def set_max_pause_s(self, max_pause_s: float) -> None:
        """Change the longest pause; without one, no sequence has a time slice."""
        self.max_pause_s = max_pause_s
        if not max_pause_s:
            self._slice_ends_s[:] = self._least_ends_s[:] = 0.0
            self._came_back[:] = False

    # Pauses

    def pause(self, sequence: Sequence) -> None:
        """Note that a sequence waits again, and pauses if it has begun."""
        if sequence.paused_since_s >= 0.0:
            insort(self._paused, _place(sequence))

    def resume(self, sequence: Sequence, now: float, move_s: float) -> None:
        """Begin the slice of a sequence that got a slot; it lasts at least as long as its copies
        out and in, or its recomputation.
        """
        if self.max_pause_s:
            slot, slice_s = sequence.slot, SLICE_SHARE * self.max_pause_s
            self._slice_ends_s[slot] = now + max(slice_s, move_s)
            self._least_ends_s[slot] = now + max(LEAST_SLICE * slice_s, move_s)
            self._came_back[slot] = sequence.num_output_tokens > 0
        if self._paused:
            self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Forget the pause of a sequence, if it has one."""
        if not self._paused:
            return
        place = bisect_left(self._paused, _place(sequence)[:2])
        if place < len(self._paused) and self._paused[place][2] is sequence:
            del self._paused[place]

    # The bound

    @property
    def _slice_s(self) -> float:
        return SLICE_SHARE * self.max_pause_s

    def due(self, now: float) -> Sequence | None:
        """The first stream whose pause has to end; None if none has."""
        if self.max_pause_s and self._paused:
            since_s, _, sequence = self._paused[0]
            lead_s = _LEAD_STEPS * self._order.step_time.mean_s
            if now >= since_s + self.max_pause_s - lead_s:
                return sequence
        return None

    def next_due(self) -> Iterator[Sequence]:
        """The streams whose pauses end next, where the policy bounds them."""
        return (stream for _, _, stream in self._paused[:_SOON]) if self.max_pause_s else iter(())

    def next(self, first: Sequence, kv: KVCache, now: float) -> Sequence | None:
        """The sequence to admit next, where `first` is the first in the policy's order: a stream
        whose pause has to end; else the first that may come; else the first to come due.
        """
        if not self.max_pause_s:
            return first
        if due := self.due(now):
            return due
        first = self._order.start_bound.overdue(first.priority, now) or first
        paused = self._paused
        if not (first.num_output_tokens or self.may_begin(first, kv)):
            if not paused:
                return None
            first = self._order.waiting.first_begun or paused[0][2]
        return first if self.leaves_room(first, kv, now) else paused[0][2]

    def out_of_slice(self, slots: Slots, now: float) -> Slots:
        """The slots whose time slices are over: they may be preempted."""
        return slots[~self._in_slice(slots, now, self._slice_ends_s)] if self.max_pause_s else slots

    def after_least_slice(self, slots: Slots, now: float) -> Slots:
        """The slots that may be preempted for a stream whose pause has to end."""
        return slots[~self._in_slice(slots, now, self._least_ends_s)]

    def _in_slice(self, slots: Slots, now: float, ends_s: npt.NDArray[np.float64]) -> Bools:
        """Whether each slot is in its time slice, which ends at `ends_s`. A resumed stream stays
        until it has a further token, or streams that resume slowly would preempt each other for
        ever.
        """
        table = self._slots
        owes = self._came_back[slots] & (table.delivered[slots] <= table.fed_until[slots])
        return owes | (ends_s[slots] > now)

    def came_back(self, slots: Slots) -> Bools:
        """Whether each of these slots has a stream that had begun before it got the slot."""
        return self._came_back[slots]

    def leaves_room(self, sequence: Sequence, kv: KVCache, now: float) -> bool:
        """Whether a time slice of this sequence leaves room for all streams that come due before it
        ends; that of the first to come due always does.
        """
        if not self._paused or self._paused[0][2] is sequence:
            return True
        order = self._slots.order()
        in_slice = order[self._in_slice(order, now, self._slice_ends_s)]
        num_slots = 1 + in_slice.size
        num_blocks = kv.blocks_for(sequence.num_known_tokens + 1)
        num_blocks += int(kv.charged[in_slice].sum())
        slice_s, pause_s, block_size = self._slice_s, self.max_pause_s, kv.block_size
        growing_s = slice_s + float((self._slice_ends_s[in_slice] - now).clip(0.0).sum())
        for since_s, _, stream in self._paused:
            left_s = now + slice_s - (since_s + pause_s)
            if left_s < 0.0:
                break
            if stream is not sequence:
                num_slots += 1
                growing_s += left_s
                known = stream.num_prompt_tokens + stream.num_output_tokens + 1
                num_blocks += kv.blocks_for(known) if kv.has_windows else -(-known // block_size)
        if step_s := self._order.step_time.mean_s:
            num_blocks += self._growth(int(growing_s / step_s), in_slice, sequence, kv)
        remote_kvs = self._residency.remote_kvs
        if remote_kvs.by_id:  # the time of their fetches is unknown
            num_blocks += remote_kvs.num_blocks
        return num_slots <= self._slots.max_slots and num_blocks <= kv.pool.num_blocks

    def _growth(self, num_tokens: int, in_slice: Slots, first: Sequence, kv: KVCache) -> int:
        """The blocks of so many further tokens; those of the stream that takes most of them, where
        layers have windows.
        """
        if not kv.has_windows:
            return num_tokens // kv.block_size
        shortest = int(self._slots.known[in_slice].min(initial=first.num_known_tokens))
        shortest = min([shortest, *(stream.num_known_tokens for _, _, stream in self._paused)])
        further = kv.blocks_for(shortest + kv.block_size) - kv.blocks_for(shortest)
        return num_tokens * further // kv.block_size

    def may_begin(self, sequence: Sequence, kv: KVCache) -> bool:
        """Whether a further stream may begin: it can be kept at this pace where its answer will be
        decoded.
        """
        kept = self._keeps_elsewhere(sequence)
        return self.keeps(sequence, kv) if kept is None else kept

    def _keeps_elsewhere(self, sequence: Sequence) -> bool | None:
        """Whether the instance that is to decode its answer can keep it; None: it is this one."""
        if self.elsewhere is None or sequence.num_output_tokens:
            return None
        return self.elsewhere.keeps(sequence)

    def keeps(self, sequence: Sequence, kv: KVCache, most_pools: float = MOST_POOLS) -> bool:
        """Whether the pool can keep a further stream at this pace, by the expected need of all,
        coming streams included; a stream that is alone can always be kept. With `most_pools` 1,
        none is ever preempted.
        """
        num = self.num_streams
        if not self.max_pause_s or num <= 0:
            return True
        num_tokens = sequence.expected_length + self.num_tokens
        if not self._fits(num, num_tokens, most_pools, kv):
            return False
        most = self._most_pools(kv)
        return most >= most_pools or self._fits(num, num_tokens, most, kv)

    def _fits(self, num: int, num_tokens: int, most_pools: float, kv: KVCache) -> bool:
        """Whether a further stream beside `num` fits into so many pools, with the expected tokens
        of all.
        """
        if num >= most_pools * self._slots.max_slots:
            return False
        if kv.has_windows:
            return kv.pool_share(num_tokens, num + 1) <= most_pools
        return num_tokens <= most_pools * kv.pool_tokens

    @property
    def num_streams(self) -> int:
        """Streams decoded here, coming ones included."""
        beyond = self.num_coming - self.num_leaving
        return self._slots.num_running + len(self._paused) + beyond

    def pool_share(self, kv: KVCache) -> float:
        """The pools that the expected tokens of all answers decoded here take."""
        return kv.pool_share(self.num_tokens, self.num_streams)

    @property
    def num_tokens(self) -> int:
        """The expected tokens of all answers decoded here."""
        here = self._slots.num_expected_tokens - self.num_leaving_tokens
        return here + self._order.waiting.begun_tokens + self.num_coming_tokens

    @property
    def any_paused(self) -> bool:
        """Whether a stream pauses here."""
        return bool(self._paused)

    def waiting_longest(self, now: float, least_s: float) -> Iterator[Sequence]:
        """The streams that have paused for `least_s`, in the order in which they come due."""
        for since_s, _, sequence in self._paused:
            if now - since_s < least_s:
                return
            yield sequence

    def _most_pools(self, kv: KVCache) -> float:
        """The pools that all streams that have begun may need. All beyond one pool resumes each
        pause. By guesses, which are long, too few would begin.
        """
        each = kv.blocks_each(self.num_tokens / max(1, self.num_streams)) if kv.has_windows else 1.0
        again_s = self._residency.again_s(kv.block_size, each, self._order.step_time)
        again_s *= kv.pool.num_blocks / each
        if again_s <= 0.0 or not self._order.lengths.any_known:
            return MOST_POOLS
        return min(MOST_POOLS, 1.0 + AGAIN_SHARE * self.max_pause_s / again_s)


def _place(sequence: Sequence) -> _Place:
    return sequence.paused_since_s, sequence.arrival, sequence
