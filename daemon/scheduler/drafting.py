"""Drafting: which rows of an instance's next step verify drafted tokens beside their own, how many.

Whoever holds the tokens says with each answer how many it could draft behind it; the tokens are
none of the scheduler's affair. Drafts of a row are behind its newest token, so a step that has any
is planned when no other is in flight, and none is planned before it has answered.
"""

from dataclasses import dataclass, field

import numpy as np

from daemon.scheduler.admission import Admission
from daemon.scheduler.draft_policy import KEPT, DraftRecord, Trials, allot, may_pay
from daemon.scheduler.in_flight import InFlight, InFlightStep
from daemon.state.batch import MOST_BESIDE_DRAFTS
from daemon.wire.columns import Int32, Slots, int32

_NO_DRAFTS = int32()


@dataclass(slots=True)
class _Row:
    """What is known of the sequence in a slot."""

    epoch: int
    trials: Trials = field(default_factory=Trials)
    offered: int = 0  # drafts
    delivered: int = 0  # its tokens when they were
    granted: int = 0  # drafts for its next step


class Drafting:
    """What rows may draft, and what came of it."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._table = admission.slots
        self._rows: dict[int, _Row] = {}  # by slot
        self._granted: list[int] = []  # slots
        self.record = DraftRecord()
        self.same_until: tuple[int, ...] = ()  # as the worker said

    @property
    def wants(self) -> bool:
        """Whether the next step should draft, if nothing else is in flight."""
        return bool(self._granted)

    @property
    def offered(self) -> bool:
        """Whether drafts were offered behind the newest token of anybody who runs."""
        table = self._table
        return any(
            row.epoch == table.epoch[slot] and row.delivered == table.delivered[slot]
            for slot, row in self._rows.items()
        )

    @property
    def looks(self) -> bool:
        """Whether it is worth looking for drafts beside all that run."""
        num_rows = self._table.num_running
        return num_rows > 0 and self.room(num_rows) > 0 and may_pay(num_rows, *self._times())

    def room(self, num_tokens: int) -> int:
        """How many drafts a step of so many tokens has room for: where its own tokens get other
        numbers beside more, their answers might be others.
        """
        ends = (count for count in self.same_until if count >= num_tokens)
        return min(next(ends, MOST_BESIDE_DRAFTS), MOST_BESIDE_DRAFTS) - num_tokens

    def reset(self) -> None:
        """Forget everything: the worker is another one."""
        self._rows.clear()
        self._granted.clear()
        self.record = DraftRecord()

    def answered(
        self, flown: InFlightStep, counts: Int32, offers: Int32, later: InFlight
    ) -> tuple[int, int, int]:
        """Learn from a step, and decide on the next one by its `offers` [R]; empty: none.

        The `later` steps draw tokens of each row ahead of the next one. Returns how many rows
        drafted, their drafts, and of these the accepted ones.
        """
        told = self._learn(flown, counts) if flown.drafts.size else (0, 0, 0)
        self._granted.clear()
        if offers.size:
            self._decide(flown, offers, later.times)
        return told

    def _learn(self, flown: InFlightStep, counts: Int32) -> tuple[int, int, int]:
        if not counts.size:  # a worker that might have drawn others beside them left them out
            return 0, 0, 0
        accepted = (counts - 1).clip(0, flown.drafts)
        (drafting,) = flown.drafts.nonzero()
        for index in drafting.tolist():
            row = self._rows.get(int(flown.slots[index]))
            if row is not None and row.epoch == flown.epochs[index]:
                told = int(flown.drafts[index]), int(accepted[index])
                row.trials.learn(*told, KEPT)
                self.record.learn(row.offered, *told)
        return drafting.size, int(flown.drafts.sum()), int(accepted[drafting].sum())

    def _decide(self, flown: InFlightStep, offers: Int32, ahead: int) -> None:
        """Grant drafts to the rows of a step that has answered."""
        table, rows = self._table, list[tuple[int, _Row]]()
        offered = (offers > 0) & (table.epoch[flown.slots] == flown.epochs)
        for slot, offer in zip(
            flown.slots[offered].tolist(), offers[offered].tolist(), strict=True
        ):
            row = self._rows.get(slot)
            if row is None or row.epoch != table.epoch[slot]:
                row = self._rows[slot] = _Row(int(table.epoch[slot]))
            row.offered, row.delivered = offer, int(table.delivered[slot])
            rows.append((slot, row))
        if not rows:
            return
        asked = [row.offered for _, row in rows]
        chances = [row.trials.share(self.record.share(row.offered)) for _, row in rows]
        most = self.room(table.num_running)
        running = table.num_running, *self._times()
        granted = allot(chances, asked, *running, most, self.record.factor, ahead)
        for (slot, row), count in zip(rows, granted, strict=True):
            row.granted = count
            if count:
                self._granted.append(slot)
            else:
                row.trials.forget(row.offered)
        tried = {row.offered for _, row in rows if row.granted}
        for offer in sorted(set(asked) - tried):
            self.record.forget(offer)

    def _times(self) -> tuple[float, float]:
        """(time of a step of all that run, what one draft adds to it)."""
        order = self._table.order()
        context = int(self._table.computed[order].sum())
        step_time = self._admission.order.step_time
        _, row_s, context_s = step_time.decode_terms
        draft_s = row_s + context_s * context / max(1, order.size)
        return step_time.decode_s(order.size, context), draft_s

    def take(self, slots: Slots, num_tokens: int, budget: int) -> Int32:
        """The drafts of each row [B] of the plan of so many tokens that is made now, as far as
        `budget`, limits and blocks allow; empty: none. Nobody gives way for them.
        """
        table, kv = self._table, self._admission.kv
        budget = min(budget, self.room(num_tokens))
        granted = set(self._granted)
        self._granted.clear()
        drafts = np.zeros(slots.size, np.int32)
        for index, slot in enumerate(slots.tolist()):
            row = self._rows.get(slot) if slot in granted else None
            if row is None or row.epoch != table.epoch[slot]:
                continue
            computed, known = int(table.computed[slot]), int(table.known[slot])
            if not row.delivered == known == table.delivered[slot] == computed + 1:
                continue
            count = min(row.granted, budget, int(table.last_position[slot]) - computed - 1)
            if count > 0:
                room = int(kv.table.held[slot]) * kv.block_size - computed - 1
                if room < count and self._may_append(slot):
                    kv.append_each(np.array([slot]))
                    room += kv.block_size
                drafts[index] = count = min(count, room)
                budget -= count
        return drafts if drafts.any() else _NO_DRAFTS

    def _may_append(self, slot: int) -> bool:
        """Whether a block is there that nobody else is waiting for."""
        admission, kv = self._admission, self._admission.kv
        if admission.waiting or kv.num_unreserved <= admission.num_spare:
            return False
        return kv.can_append(np.array([slot]))
