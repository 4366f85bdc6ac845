"""Nested halves: a reservation lends the half that it needs last (EcoServe, section 3.4).

A borrower has to be done, with a buffer that nearly all answers keep to, when its lender has filled
the first half. Both lend again in the same way what they do not need yet, as nested dolls. A
sequence whose prompt waits borrows likewise; then the half has room for prompt and answer.

The borrower is the longest answer that fits, if possible one whose start is not urgent.
The paper has m x 2^k borrowers for m lenders at level k, more than one for each lender; here there
is one for each half, on as many levels as there are requests that fit.
"""

import numpy as np

from daemon.scheduler.admission import Admission
from daemon.scheduler.fillers.ordered import Ordered
from daemon.scheduler.nearing import OPEN
from daemon.scheduler.padded_ends import LIKELY_SHARE
from daemon.scheduler.step import StepBuilder
from daemon.state.sequence import Sequence
from daemon.state.story import What
from daemon.wire.columns import Bools, Slots

LEAD_STEPS = 4
"""Tokens before its lender needs the blocks at which a borrower leaves; more where more steps are
in flight: until then they have answered."""

MOST_LENDERS = 32
"""Most lenders tried in one step, those that can lend most first."""

LOOK_AT = 256
"""How far down the queue of prompts to look for borrowers."""

PROMPT_STEPS = 2
"""Steps that a prompt takes beside those that its tokens fill: it joins one, and waits for none."""


class Nested(Ordered):
    """Reservations of predicted lengths, and halves of them lent."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission)
        self._found_none: tuple[int, ...] = ()  # state of the queues when no prompt found a lender

    def go_on(self, slots: Slots, now: float) -> Slots:
        """Preempt borrowers whose loans are due, then go on."""
        kv, admission = self.admission.kv, self.admission
        lead = max(LEAD_STEPS, admission.step - admission.answered_step + 2)
        while due := self._due(lead):
            for slot in due:
                lender = self.slots.member(kv.lending.lender_of(slot)).id
                admission.preempt(slot, What.OUT_OF_BLOCKS, now, lender)
        return super().go_on(self.slots.going_on(slots), now)

    def _due(self, lead: int) -> list[int]:
        """The borrowers whose loans are due, except those that give way already."""
        kv, giving_way = self.admission.kv, self.slots.giving_way
        due = kv.lending.due(self.slots.known, lead, kv.block_size)
        return [slot for slot in due if slot not in giving_way]

    def begin(self, waiting: Slots, now: float) -> Slots:
        """The answers that find room, and those that borrow some."""
        begun = super().begin(waiting, now)
        rest = waiting[~np.isin(waiting, begun)]
        if not rest.size:
            return begun
        return np.concatenate([begun, self._lend_to(rest)])

    def _lend_to(self, waiting: Slots) -> Slots:
        """Find lenders for these slots; returns the slots that borrow."""
        kv, table = self.admission.kv, self.slots
        left = np.maximum(self.ends.of(waiting) - table.known[waiting], 1)
        by_left = left.argsort(kind="stable")
        waiting, needed = waiting[by_left], np.ceil(left[by_left] * (1.0 + self._margin))
        lacking = kv.blocks_of(self.ends.of(waiting)) - kv.charged[waiting]
        loose = self._time_ranges(waiting) >= OPEN
        lenders = self._lenders()
        borrowers: list[int] = []
        while lenders and waiting.size:
            lender = lenders.pop(0)
            half, until_due = self._offer(lender)
            fits = (needed <= until_due) & (lacking > 0) & (lacking <= half)
            place = longest_of(fits, loose)
            if place < 0:
                continue
            slot, count = int(waiting[place]), int(lacking[place])
            kv.lending.lend(lender, slot, count, int(kv.charged[slot]) + count)
            table.member(slot).loans += 1
            borrowers.append(slot)
            left_over = np.arange(waiting.size) != place
            waiting, needed = waiting[left_over], needed[left_over]
            lacking, loose = lacking[left_over], loose[left_over]
            lenders += [slot, lender]
        return np.array(borrowers, np.intp)

    def _lenders(self) -> list[int]:
        """Slots with blocks to lend, most first."""
        kv, order = self.admission.kv, self.slots.order()
        if kv.has_windows:  # behind a window tokens need fewer blocks: none is due at a token
            return []
        begun = order[kv.reservations.among(order)]
        unheld = kv.reservations.unheld_of(begun)
        by_most = (-unheld).argsort(kind="stable")[:MOST_LENDERS]
        lenders: list[int] = begun[by_most[unheld[by_most] > 1]].tolist()
        return lenders

    def _offer(self, lender: int) -> tuple[int, int]:
        """(blocks of the half that a lender can lend, steps until it needs their first)."""
        kv = self.admission.kv
        half = kv.reservations.unheld(lender) // 2
        filled = int(self.slots.known[lender]) + 2 * LEAD_STEPS
        return half, (kv.lending.due_block(lender) - half) * kv.block_size - filled

    @property
    def _margin(self) -> float:
        """The paper's buffer b, as a share of what is kept for an answer."""
        return self.admission.order.lengths.outgrown(LIKELY_SHARE).margin

    # Prompts

    def admit_in_order(self, step: StepBuilder, now: float) -> None:
        """Admit prompts into the room kept for them, then prompts that borrow all their room."""
        super().admit_in_order(step, now)
        state = self.slots.departures, self.slots.num_running, self.waiting.num_changes
        if not self.waiting or step.room <= 0 or self.slots.full or state == self._found_none:
            return
        if not self._lend_to_prompts(step, now):
            self._found_none = state  # lenders have less to lend with each token

    def _lend_to_prompts(self, step: StepBuilder, now: float) -> bool:
        """Admit prompts that find a lender; whether any did."""
        kv = self.admission.kv
        prompts = [self.waiting.at(place) for place in range(min(LOOK_AT, len(self.waiting)))]
        known, likely = self.waiting.columns(LOOK_AT)
        padding = self.admission.order.lengths.padding(LIKELY_SHARE)
        left = np.maximum(np.ceil((likely - known) * padding), 1.0)
        by_left = left.argsort(kind="stable")
        prompts = [prompts[place] for place in by_left.tolist()]
        known, left = known[by_left], left[by_left]
        steps = left * (1.0 + self._margin) + known // max(1, step.budget) + PROMPT_STEPS
        blocks = -(-(known + left).astype(np.int64) // kv.block_size)
        loose = np.array([prompt.level >= OPEN for prompt in prompts])
        open_to = np.ones(len(prompts), np.bool_)
        found = False
        lenders = self._lenders()
        while lenders and open_to.any():
            lender = lenders.pop(0)
            half, until_due = self._offer(lender)
            place = longest_of(open_to & (steps <= until_due) & (blocks <= half), loose)
            if place < 0:
                continue
            open_to[place] = False
            count = self._blocks_of(prompts[place])
            if count > half:
                continue
            if step.room <= 0 or not self._lend_to_prompt(prompts[place], lender, count, step, now):
                return found
            found = True
            lenders += [prompts[place].slot, lender]
        return found

    def _blocks_of(self, sequence: Sequence) -> int:
        """The blocks that a prompt and its answer will take."""
        lengths, age = self.admission.order.lengths, sequence.num_output_tokens
        padded = lengths.padded(sequence, age, LIKELY_SHARE)
        return self.admission.kv.blocks_for(sequence.num_prompt_tokens + padded)

    def _lend_to_prompt(
        self, sequence: Sequence, lender: int, count: int, step: StepBuilder, now: float
    ) -> bool:
        """Admit a sequence whose lender lends it all its blocks; whether that was possible."""
        kv = self.admission.kv
        kv.reservations.change(lender, -count)  # so that admission finds them
        self._num_ahead = 0  # it takes nothing of the prompts' room
        admitted = self.admit_one(sequence, step, now)
        self._num_ahead = None
        kv.reservations.change(lender, count)
        if admitted:
            kv.lending.lend(lender, sequence.slot, count, count)
            sequence.loans += 1
        return admitted


def longest_of(fits: Bools, loose: Bools) -> int:
    """The last place that fits, in ascending order of what is left; preferably a `loose` one, which
    may be late, as a borrower may have to leave; -1: none fits.
    """
    for among in (fits & loose, fits):
        (places,) = among.nonzero()
        if places.size:
            return int(places[-1])
    return -1
