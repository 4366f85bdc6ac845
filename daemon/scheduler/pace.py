"""Pace: a stream that has begun keeps flowing. How long it may pause, and what that asks of others.

A stream that has begun, and gives way, pauses for `max_pause_s` at most; then it comes back whoever
waits, and runs for a turn before it may give way again. Everybody has a turn when it gets a slot.

This can be kept. Those that give way within a turn's time all had slots when it began, since
nobody gives way within its own turn; so those that come due within a turn's time fit into the pool
together. What could keep them out are turns that others began meanwhile, and nobody begins one
(`leaves_room`) unless it fits beside all turns that run and all streams that come due before it
ends, with what all of them grow by until then.

A stream is counted where its answer is drawn: from elsewhere as soon as it is certain to come
(`num_coming`), and no longer where it only has its prompt computed (`num_leaving`).

A turn is at least as long as its moves, and not over before the stream that came back has a token:
streams that take longer to come back than their turns last would preempt each other for ever.
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

TURN_SHARE = 0.5
"""A turn, as a share of `max_pause_s`; a longer one where its copies out and in take longer, or
twice what it computes again: half of each turn at least goes on with the answer."""

LEAST_TURN = 0.5
"""So much of a turn, or what its moves take, is anybody's own; after that a stream whose pause has
to end may have the place, if there is no other: what runs has grown since that one gave way, by a
block or two, which are much of a small pool."""

MOST_POOLS = 2.5
"""Nobody begins while all that have begun are expected to need more pools than so many, after the
stretches that they are worth going on: a third of that time at least is left to each, by its turns,
and where answers are alike few are kept that others have to make room for."""

AGAIN_SHARE = 0.1
"""Where streams that come back are computed again, they may take so much of the others' time: fewer
begin, so that fewer come back within `max_pause_s`."""

_LEAD_STEPS = 2.0
"""A stream comes due so many steps before its pause is over: one to plan it, one to compute it."""


_Place = tuple[float, int, Sequence]  # (paused since, arrival, who)


class Elsewhere(Protocol):
    """The instances that draw the answers of prompts that are computed here."""

    def keeps(self, sequence: Sequence) -> bool | None:
        """Whether one of them can keep a stream more; None: its answer is drawn here."""

    def began(self, sequence: Sequence) -> None:
        """A sequence has begun here: it is counted where its answer will be drawn."""

    def stays(self, sequence: Sequence) -> None:
        """It gave way, and is not certain to come there any more."""


class StreamPace:
    """The pauses of one instance's streams, and the turns of those that run."""

    def __init__(self, order: Order, residency: Residency) -> None:
        slots = order.slots
        self._order = order
        self._residency = residency
        self.max_pause_s = 0.0  # 0: the policy promises nothing
        self._slots = slots
        self._turn_ends_s = np.zeros(slots.max_slots)
        self._least_ends_s = np.zeros(slots.max_slots)  # of the part of it that is its own
        self._came_back = np.zeros(slots.max_slots, np.bool_)  # after a pause
        self._paused: list[_Place] = []  # those that wait, in the order in which they come due
        self._paused_tokens = 0  # that they need by what was expected as of the queue's changes
        self._counted_as_of = -1
        self.num_coming = self.num_coming_tokens = 0  # that run elsewhere and will go on here
        self.num_leaving = self.num_leaving_tokens = 0  # that run here and are counted elsewhere
        self.elsewhere: Elsewhere | None = None  # of several instances, where answers are drawn

    # Who pauses

    def pause(self, sequence: Sequence) -> None:
        """A sequence waits again, and pauses if it has begun."""
        if sequence.paused_since_s >= 0.0:
            insort(self._paused, _place(sequence))
            self._counted_as_of = -1

    def resume(self, sequence: Sequence, now: float, move_s: float) -> None:
        """A sequence got a slot: its turn begins, and lasts as long as its moves out and in, or
        as what it takes to come back."""
        slot = sequence.slot
        turn_s = TURN_SHARE * self.max_pause_s
        self._turn_ends_s[slot] = now + max(turn_s, move_s)
        self._least_ends_s[slot] = now + max(LEAST_TURN * turn_s, move_s)
        self._came_back[slot] = self.max_pause_s > 0.0 and sequence.num_output_tokens > 0
        if self._paused:
            self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """A sequence no longer pauses here, if it did."""
        if not self._paused:
            return
        place = bisect_left(self._paused, _place(sequence)[:2])
        if place < len(self._paused) and self._paused[place][2] is sequence:
            del self._paused[place]
            self._counted_as_of = -1

    # What is promised

    @property
    def _turn_s(self) -> float:
        return TURN_SHARE * self.max_pause_s

    def due(self, now: float) -> Sequence | None:
        """The first stream whose pause has to end; None if nobody's has."""
        if self.max_pause_s and self._paused:
            since_s, _, sequence = self._paused[0]
            lead_s = _LEAD_STEPS * self._order.step_time.mean_s
            if now >= since_s + self.max_pause_s - lead_s:
                return sequence
        return None

    def next(self, first: Sequence, kv: KVCache, now: float) -> Sequence | None:
        """Who is asked in next, where `first` is the first in the policy's order: a stream whose
        pause has to end; else the first that may come; else whoever comes due first.
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
            first = min((one for _, _, one in paused), key=_order_key)
        return first if self.leaves_room(first, kv, now) else paused[0][2]

    def out_of_turn(self, slots: Slots, now: float) -> Slots:
        """Those of these slots whose turns are over: they may give way."""
        return slots[~self._in_turn(slots, now, self._turn_ends_s)] if self.max_pause_s else slots

    def after_least_turn(self, slots: Slots, now: float) -> Slots:
        """Those of these slots that may give way to a stream whose pause has to end."""
        return slots[~self._in_turn(slots, now, self._least_ends_s)]

    def _in_turn(self, slots: Slots, now: float, ends_s: npt.NDArray[np.float64]) -> Bools:
        """Which of these are in their turns, which end then. A stream that came back stays until it
        has a token more, or streams that are long in coming back would throw each other out for
        ever.
        """
        table = self._slots
        owes = self._came_back[slots] & (table.delivered[slots] <= table.fed_until[slots])
        return owes | (ends_s[slots] > now)

    def came_back(self, slots: Slots) -> Bools:
        """Which of these slots have streams that have begun before they got them."""
        return self._came_back[slots]

    def leaves_room(self, sequence: Sequence, kv: KVCache, now: float) -> bool:
        """Whether a turn of this one leaves room for all that come due before it ends; the first of
        them always does.
        """
        if not self._paused or self._paused[0][2] is sequence:
            return True
        order = self._slots.order()
        turning = order[self._in_turn(order, now, self._turn_ends_s)]
        num_slots = 1 + turning.size
        num_blocks = kv.blocks_for(sequence.num_known_tokens + 1)
        num_blocks += int(kv.table.held[turning].sum())
        growing_s = self._turn_s + float((self._turn_ends_s[turning] - now).clip(0.0).sum())
        for since_s, _, one in self._paused:
            left_s = now + self._turn_s - (since_s + self.max_pause_s)
            if left_s < 0.0:
                break
            if one is not sequence:
                num_slots += 1
                growing_s += left_s
                num_blocks += kv.blocks_for(one.num_known_tokens + 1)
        if step_s := self._order.step_time.mean_s:
            num_blocks += int(growing_s / step_s) // kv.block_size
        remote_kvs = self._residency.remote_kvs
        if remote_kvs.by_id:  # nobody knows when they are fetched
            num_blocks += remote_kvs.num_blocks
        return num_slots <= self._slots.max_slots and num_blocks <= kv.pool.num_blocks

    def may_begin(self, sequence: Sequence, kv: KVCache) -> bool:
        """Whether one stream more may begin: where its answer will be drawn, it can be kept at this
        pace.
        """
        kept = self._keeps_elsewhere(sequence)
        return self.keeps(sequence, kv) if kept is None else kept

    def _keeps_elsewhere(self, sequence: Sequence) -> bool | None:
        """Whether the instance that is to draw its answer can keep it; None: it is drawn here."""
        if self.elsewhere is None or sequence.num_output_tokens:
            return None
        return self.elsewhere.keeps(sequence)

    def keeps(self, sequence: Sequence, kv: KVCache, most_pools: float = MOST_POOLS) -> bool:
        """Whether the pool can keep one stream more at this pace, by what all are expected to need,
        those that will come included; one that is alone can always be kept. With one pool, none has
        to give way.
        """
        num = self._slots.num_running + len(self._paused) + self.num_coming - self.num_leaving
        if not self.max_pause_s or num <= 0:
            return True
        num_tokens = sequence.expected_length + self.num_tokens
        most_pools = min(most_pools, self._most_pools(kv))
        enough_slots = num < most_pools * self._slots.max_slots
        return enough_slots and num_tokens <= most_pools * kv.capacity_tokens

    @property
    def num_tokens(self) -> int:
        """What all that draw their answers here are expected to need."""
        paused = self._num_paused_tokens()
        here = self._slots.num_expected_tokens - self.num_leaving_tokens
        return here + paused + self.num_coming_tokens

    def _num_paused_tokens(self) -> int:
        """Of those that pause: what is expected of one that waits changes as it is queued anew."""
        as_of = self._order.waiting.num_changes
        if self._counted_as_of != as_of:
            self._counted_as_of = as_of
            self._paused_tokens = sum([one.expected_length for _, _, one in self._paused])
        return self._paused_tokens

    @property
    def any_paused(self) -> bool:
        """Whether a stream pauses here."""
        return bool(self._paused)

    def waiting_longest(self, now: float, least_s: float) -> Iterator[Sequence]:
        """The streams that have paused for so long, in the order in which they come due."""
        for since_s, _, sequence in self._paused:
            if now - since_s < least_s:
                return
            yield sequence

    def _most_pools(self, kv: KVCache) -> float:
        """What all that have begun may need. What is beyond one pool comes back each pause. By
        guesses, which are long, too few would begin.
        """
        again_s = kv.pool.num_blocks * self._residency.again_s(kv.block_size, self._order.step_time)
        if again_s <= 0.0 or not self._order.lengths.any_known:
            return MOST_POOLS
        return min(MOST_POOLS, 1.0 + AGAIN_SHARE * self.max_pause_s / again_s)


def _place(sequence: Sequence) -> _Place:
    return sequence.paused_since_s, sequence.arrival, sequence


def _order_key(sequence: Sequence) -> tuple[float, int]:
    return sequence.order_key
