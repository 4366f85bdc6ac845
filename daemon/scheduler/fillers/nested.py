"""Nested halves: who has room reserved lends the half that it needs last (EcoServe, section 3.4).

A lodger has to be done, with a buffer that nearly all answers keep to, when its host has filled the
first half. Both lend again in the same way what they do not need yet, as dolls within dolls.
"""

import numpy as np

from daemon.scheduler.fillers.ordered import Ordered
from daemon.story import What
from daemon.wire.columns import Slots

LEAD_STEPS = 4
"""A lodger leaves so many tokens before its host needs what it has, and more where more steps are
in flight: until then they have answered."""

MOST_HOSTS = 32
"""Hosts that are asked in one step, those that can lend most first."""


class Nested(Ordered):
    """Reservations of predicted lengths, and halves of them lent."""

    def go_on(self, slots: Slots, now: float) -> Slots:
        """Lodgers whose loans are due leave first."""
        kv, admission = self.admission.kv, self.admission
        lead = max(LEAD_STEPS, admission.step - admission.answered_step + 2)
        while due := kv.lending.due(self.slots.known, lead, kv.block_size):
            for slot in due:
                host = self.slots.member(kv.lending.host_of(slot)).id
                admission.preempt(slot, What.OUT_OF_BLOCKS, now, host)
        return super().go_on(slots[self.slots.sequence[slots] >= 0], now)

    def begin(self, waiting: Slots, now: float) -> Slots:
        """Those that find room, and those that are lent some."""
        begun = super().begin(waiting, now)
        rest = waiting[~np.isin(waiting, begun)]
        if not rest.size:
            return begun
        return np.concatenate([begun, self._lodge(rest)])

    def _lodge(self, waiting: Slots) -> Slots:
        """Those of these slots that found a host."""
        kv, table = self.admission.kv, self.slots
        left = np.maximum(self.ends.of(waiting) - table.known[waiting], 1)
        by_left = left.argsort(kind="stable")
        waiting, left = waiting[by_left], left[by_left]
        margin = self.admission.order.lengths.outgrown(self.share).margin  # the paper's buffer b
        needed = np.ceil(left * (1.0 + margin))
        hosts = self._hosts()
        lodgers: list[int] = []
        while hosts and waiting.size:
            host = hosts.pop(0)
            half = kv.reservations.unheld(host) // 2
            filled = int(table.known[host]) + 2 * LEAD_STEPS
            until_due = (kv.lending.due_block(host) - half) * kv.block_size - filled
            place = int(needed.searchsorted(until_due, "right")) - 1
            if half < 1 or place < 0:
                continue
            slot = int(waiting[place])
            held = int(kv.table.held[slot])
            lacking = kv.blocks_for(int(self.ends.of(waiting[place : place + 1])[0])) - held
            if not 0 < lacking <= half:
                continue
            kv.lending.lend(host, slot, lacking, held + lacking)
            lodgers.append(slot)
            waiting, needed = np.delete(waiting, place), np.delete(needed, place)
            hosts += [slot, host]
        return np.array(lodgers, np.intp)

    def _hosts(self) -> list[int]:
        """Slots with something to lend, those with most first."""
        kv, order = self.admission.kv, self.slots.order()
        begun = order[kv.reservations.among(order)]
        unheld = kv.reservations.unheld_of(begun)
        by_most = (-unheld).argsort(kind="stable")[:MOST_HOSTS]
        hosts: list[int] = begun[by_most[unheld[by_most] > 1]].tolist()
        return hosts
