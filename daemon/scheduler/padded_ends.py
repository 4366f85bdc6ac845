"""Padded ends: the expected end of each sequence in a slot, with a margin for errors."""

import numpy as np

from daemon.scheduler.order import Order
from daemon.wire.columns import Bools, Int32, Slots, any_true

LIKELY_SHARE = 0.5
"""The share of similar answers that do not exceed the room kept for one. EcoServe pads predictions
by what makes JCT shortest, 10 to 20 % there (section 2.3), where an outgrown answer is preempted.
Here it goes on in what is spared or waits with its KV, so that more is memory seldom used.
"""

_NO_SLOTS = np.zeros(0, np.intp)


class PaddedEnds:
    """A column by slot: the length at which its sequence ends, padded by the recent error of
    predictions (`SeenLengths.padded`). A sequence that outgrew its end is late, and gets another.
    One whose last token is still in flight has outgrown nothing yet.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._slots = order.slots
        num = order.slots.max_slots
        self._ends = np.zeros(num, np.int32)
        self._epochs = np.full(num, -1, np.int64)  # of the sequence it belongs to
        self._predicted = np.zeros(num, np.int32)  # `predicted_end` as of then
        self._late = np.zeros(num, np.bool_)

    def of(self, slots: Slots) -> Int32:
        """The ends of these slots as of the last `renew`; int32 [N]."""
        ends: Int32 = self._ends[slots]
        return ends

    def now(self, slots: Slots) -> Int32:
        """The same, with ends of new slots as a step would compute them; it changes nothing."""
        ends = self.of(slots)
        new = self._epochs[slots] != self._slots.epoch[slots]
        ends[new] = [self._padded(slot) for slot in slots[new].tolist()]
        return ends

    def late(self, slots: Slots) -> Bools:
        """Whether each slot has outgrown an end; bool [N]."""
        late: Bools = self._late[slots]
        return late

    def renew(self, slots: Slots) -> Slots:
        """Renew the ends of slots that are new, late, or predicted anew; returns these. All
        computed slots are looked at in each step that is filled.
        """
        table = self._slots
        table.reranked = False
        stale = self._stale()[slots]
        if not any_true(stale):
            return _NO_SLOTS
        changed: Slots = slots[stale]
        new = self._epochs[changed] != table.epoch[changed]
        late = ~new & (self._ends[changed] <= table.delivered[changed])
        self._late[changed[new]] = False
        self._late[changed[late]] = True
        for slot in changed.tolist():
            self._renew(slot)
        return changed

    def is_known(self, slots: Slots) -> bool:
        """Whether the ends of all these are known: `renew` would look at none of them."""
        return not any_true(self._stale()[slots])

    def _stale(self) -> Bools:
        """Whether each slot's end is unknown, vacant ones included; bool [max_slots]. To compare
        whole columns is quicker than to gather a few.
        """
        table = self._slots
        changed = (self._epochs != table.epoch) | (self._predicted != table.predicted_end)
        stale: Bools = (self._ends <= table.delivered) | changed
        return stale

    def _renew(self, slot: int) -> None:
        table = self._slots
        self._ends[slot] = self._padded(slot)
        self._epochs[slot] = table.epoch[slot]
        self._predicted[slot] = table.predicted_end[slot]

    def _padded(self, slot: int) -> int:
        sequence = self._slots.member(slot)
        num_outputs = int(self._slots.delivered[slot]) - sequence.num_prompt_tokens
        padded = self._order.lengths.padded(sequence, num_outputs, LIKELY_SHARE)
        return sequence.num_prompt_tokens + padded
