"""Answers begin while the future peak of all that have begun has room: full EcoServe, packed.

Nothing is set aside. Blocks that a sequence needs only when another has ended are that other one's
until then; so an answer that ends before others need its blocks is their borrower. One that does
not end as predicted is preempted before others need its room.
"""

import numpy as np

from daemon.scheduler.admission import Admission, AdmissionPlan
from daemon.scheduler.fillers.ordered import Ordered
from daemon.scheduler.future_peak import FuturePeak, future_peak
from daemon.scheduler.padded_ends import LIKELY_SHARE
from daemon.scheduler.step import StepBuilder
from daemon.state.sequence import Sequence
from daemon.state.story import What
from daemon.wire.columns import ONE, Int32, Slots, int32

LEAD_STEPS = 3
"""Steps before its blocks are needed at which a late answer leaves: until then the steps that name
them have answered."""

LOOK_AT = 128
"""How far down the queue to look for a sequence that may overtake the head."""

MOST_AT_ONCE = 64
"""Answers that begin in one step."""

SPACED = 0.7
"""The least spacing of predicted ends, as a share of the mean spacing. Answers that end together
also peak together, and leave the memory empty together."""

MOST_PASSES = 16
"""How often better-spaced answers may overtake the head of the queue. From then on it goes as soon
as it has room, and only answers that do not delay it overtake it."""


class PackedByPeak(Ordered):
    """Fills by the future peak: all blocks that are not needed yet are lent."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission)
        self._num_looked_at = -1  # running sequences whose ends are known
        # While prompts are admitted: slots in use before, newly admitted ones as (known tokens,
        # left), and the tokens of all of these, now and at their ends.
        self._before: Slots = np.zeros(0, np.intp)
        self._joined: list[tuple[int, int]] = []
        self._num_known = self._at_ends = 0
        self._num_spare: int | None = None  # blocks, beside the slots in use before
        self._passed = -1, 0  # the head of the queue, and how often it was overtaken

    def begin(self, waiting: Slots, now: float) -> Slots:
        """The slots whose answers fit beside all that have begun, until they end."""
        kv, table = self.admission.kv, self.slots
        begun, _ = self._split(table.order())
        self.ends.renew(begun)
        num_spare = self.num_spare(begun)
        waiting = waiting[self.sorted_places(waiting)]
        known, ends = table.known[waiting], self.ends.of(waiting)
        held = kv.charged[waiting] * self._block
        chosen: list[int] = []
        while len(chosen) < min(MOST_AT_ONCE, waiting.size):
            others = kv.pool.num_held - int(kv.charged[begun].sum())
            room = self._room(begun.size + 1, num_spare) - max(0, others) * self._block + held
            of_begun = self.slots.known[begun]
            peak = future_peak(of_begun, np.maximum(self.ends.of(begun) - of_begun, 1), kv)
            fits = peak.with_each(known, np.maximum(ends - known, 1)) <= room
            fits[chosen] = False
            if begun.size and not fits.any():
                break
            place = int(fits.argmax())  # an answer that is alone always begins
            chosen.append(place)
            slot = int(waiting[place])
            kv.reservations.reserve(slot, int(kv.charged[slot]))
            begun = np.append(begun, slot)
        return waiting[chosen]

    def _room(self, num_beside: int, num_spare: int) -> int:
        """The room of `num_beside` sequences together beside spared blocks: tokens, of which on
        average half a block of each is unused; pages where layers have windows.
        """
        kv = self.admission.kv
        num_blocks = kv.pool.num_blocks - num_spare
        if kv.has_windows:
            return num_blocks
        return num_blocks * kv.block_size - num_beside * kv.block_size // 2

    @property
    def _block(self) -> int:
        """The size of a block, as rooms and peaks count."""
        kv = self.admission.kv
        return 1 if kv.has_windows else kv.block_size

    def _held_by(self, num_tokens: int) -> int:
        """The size of one sequence, as rooms and peaks count."""
        kv = self.admission.kv
        return kv.blocks_for(num_tokens) if kv.has_windows else num_tokens

    def _held(self, num_tokens: Int32) -> int:
        """The size of sequences of so many tokens together, as rooms and peaks count."""
        kv = self.admission.kv
        return int(np.add.reduce(kv.blocks_of(num_tokens) if kv.has_windows else num_tokens))

    # Prompts

    def admit_in_order(self, step: StepBuilder, now: float) -> None:
        """Admit prompts whose answers have room beside all that have slots: in order, except those
        that would end close to others.
        """
        if self.slots.full:
            self.admission.predicted_room.settle()
            return
        if not (self.waiting and step.room > 0):
            return
        self._look_at_all()
        while self.waiting and step.room > 0 and not self.slots.full:
            found = self._next()
            if found is None:
                self.admission.predicted_room.settle()
                return
            sequence, known, left = found
            if not self.admit_one(sequence, step, now):
                return
            kv = self.admission.kv
            kv.reservations.reserve(sequence.slot, int(kv.charged[sequence.slot]))
            self._joined.append((known, left))
            self._num_known += self._held_by(known)
            self._at_ends += self._held_by(known + left)

    def _look_at_all(self) -> None:
        order = self.slots.order()
        if order.size != self._num_looked_at:
            self.ends.renew(order)
        known = self.slots.known[order]
        ends = np.maximum(self.ends.of(order), known + ONE)
        self._num_known, self._at_ends = self._held(known), self._held(ends)
        self._before = order
        self._joined.clear()
        self._num_spare = None

    def _future_peak(self) -> FuturePeak:
        """The future peak of all that have slots."""
        known = self.slots.known[self._before]
        left = np.maximum(self.ends.of(self._before) - known, ONE)
        if self._joined:
            joined = int32(self._joined)
            known = np.concatenate([known, joined[:, 0]])
            left = np.concatenate([left, joined[:, 1]])
        return future_peak(known, left, self.admission.kv)

    def lets_in(self, sequence: Sequence, plan: AdmissionPlan) -> bool:
        """Always: prompts are offered only once their whole answer fits."""
        return True

    def _with_lengths(self, sequence: Sequence) -> tuple[Sequence, int, int]:
        """(the sequence, its known tokens, its padded tokens to come)."""
        age = sequence.num_output_tokens
        left = self.admission.order.lengths.padded(sequence, age, LIKELY_SHARE) - age
        return sequence, sequence.num_known_tokens, left

    def _next(self) -> tuple[Sequence, int, int] | None:
        """The sequence to admit next, with its lengths."""
        first = self._with_lengths(self.waiting.first)
        _, own_known, own_left = first
        num_beside = self._before.size + len(self._joined) + 1
        at_ends = self._at_ends + self._held_by(own_known + own_left)
        if num_beside == 1 or at_ends <= self._room(num_beside, self.most_spare):
            return first  # no peak is higher than all their ends together
        if self._num_spare is None:
            self._num_spare = self.num_spare(self._before)
        room = self._room(num_beside, self._num_spare)
        known, likely = self.waiting.columns(LOOK_AT)
        further = 0 if self.admission.kv.has_windows else num_beside
        if self._num_known + further + self._held_by(int(known.min())) > room:
            return None  # not even one further token each fits
        peak = self._future_peak()
        padding = self.admission.order.lengths.padding(LIKELY_SHARE)
        left = np.maximum(np.ceil((likely - known) * padding), 1.0).astype(np.int32)
        left[0] = own_left
        fits = peak.fits(known, left, room)
        if not self._may_be_passed(first[0]):
            if fits[0]:
                return first
            fits &= left <= peak.wait(own_known, own_left, room)
        if not fits.any():
            return None
        distance = np.where(fits, peak.distance(left), -1)
        spaced = distance >= SPACED * max(peak.num_steps, own_left) / num_beside
        place = int(spaced.argmax() if spaced.any() else distance.argmax())
        if not place:
            return first
        self._passed = first[0].id, self._num_passes(first[0]) + 1
        return self._with_lengths(self.waiting.at(place))

    def _may_be_passed(self, first: Sequence) -> bool:
        """Whether others may overtake the head of the queue and delay it; not a stream that has
        begun and pauses.
        """
        return not first.num_output_tokens and self._num_passes(first) < MOST_PASSES

    def _num_passes(self, first: Sequence) -> int:
        passed, num_passes = self._passed
        return num_passes if passed == first.id else 0

    # Answers that have begun

    def go_on(self, slots: Slots, now: float) -> Slots:
        """The slots with a block for their next token; late ones leave where there will be too few
        blocks.
        """
        kv = self.admission.kv
        self.ends.renew(slots)
        if slots.size > kv.num_unreserved:  # else each could have a block
            short = kv.needing_block(slots, self.slots.computed)
            if short.size > max(0, kv.num_unreserved) or self._lacks_soon(slots):
                slots = self._without_late(slots, now)
        slots = self.grow(slots, now)
        self._num_looked_at = slots.size
        return slots

    def is_settled(self) -> bool:
        """Also where, with no vacant slot, each running sequence could have a block: late ones need
        not leave. It is settled from then on, as where such a step is filled.
        """
        room = self.admission.predicted_room
        if room.settled:
            return True
        if self.admission.kv.num_unreserved < self.slots.num_running or not super().is_settled():
            return False
        room.settle()
        return True

    def _lacks_soon(self, slots: Slots) -> bool:
        kv = self.admission.kv
        soon = kv.needing_block(slots, self.slots.computed + LEAD_STEPS)
        coming = kv.pool.num_fenced + sum(map(kv.num_own, self.slots.giving_way))
        return soon.size > kv.num_unreserved + coming

    def _without_late(self, slots: Slots, now: float) -> Slots:
        """Preempt late answers, last first, until enough blocks are coming; returns the rest."""
        late = slots[self.ends.late(slots)][::-1]
        for slot in late.tolist():
            if not self._lacks_soon(slots) or slots.size == 1:
                break
            if not self.slots.is_leaving(slot):
                self.admission.preempt(slot, What.OUT_OF_BLOCKS, now)
                slots = slots[slots != slot]
        return slots
