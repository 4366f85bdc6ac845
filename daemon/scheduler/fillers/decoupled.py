"""Two queues (EcoServe, section 3.2): answers fill the memory, prompts fill the step.

A prompt is computed into memory kept for prompts. Then its sequence is a generation task: it keeps
its slot and blocks, and waits until the predicted room of its answer is available. A task with a
reservation has begun; one without waits.
"""

from typing import ClassVar

import numpy as np

from daemon.scheduler.admission import Admission, AdmissionPlan
from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.padded_ends import LIKELY_SHARE, PaddedEnds
from daemon.scheduler.step import StepBuilder
from daemon.state.sequence import Sequence
from daemon.state.story import What
from daemon.wire.columns import Int32, Slots

PROMPT_SHARE = 0.05
"""The share of the pool for sequences whose answers have not begun, beyond the first of them. More
lets prompts run ahead of the answers that have room, and takes that room from them."""

MOST_SPARE_SHARE = 0.05
"""The largest share of the pool spared when answers begin. Where predictions are so poor that more
would be outgrown, fewer answers at once cost more than answers that stop."""

_NO_SLOTS = np.zeros(0, np.intp)


class Decoupled(Filler):
    """Answers in the order of the queue, each with its predicted room (EcoServe-D)."""

    in_order = False
    grouped: ClassVar[bool] = False
    """Whether answers of the same predicted length begin together, and so end together."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission)
        self.ends = PaddedEnds(admission.order)
        self._num_ahead: int | None = None  # blocks held by unbegun sequences; None: not counted

    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows: answers that have begun, those that can begin, and then prompts."""
        kv = self.admission.kv
        kv.lending.settle(kv.pool.num_available)
        self._num_ahead = None
        begun, waiting = self._split(decodes)
        epochs, of_waiting = self.slots.epoch[decodes], self.slots.epoch[waiting]
        step.add_decodes(self.waited_longest(self.go_on(begun, now), step.budget))
        waiting = self.still(waiting, of_waiting)
        if waiting.size and step.budget > 0:
            self.ends.renew(waiting)
            step.add_decodes(self._with_blocks(self.begin(waiting, now))[: step.budget])
        self.continue_prompts(step, prompts)
        self.admit_in_order(step, now)
        if step.empty and decodes.size:
            self._make_one_go_on(step, self.still(decodes, epochs), now)

    def before_prompts(self, decodes: Slots) -> Slots:
        """The decodes that have begun."""
        return self._split(decodes)[0]

    def is_settled(self) -> bool:
        """Also where no slot is vacant, and all running sequences go on as they are."""
        return super().is_settled() or (
            self.slots.full
            and self.ends.is_known(self.slots.order())
            and not self.admission.kv.lending.num_owed
        )

    def lets_in(self, sequence: Sequence, plan: AdmissionPlan) -> bool:
        """Whether a prompt fits into the room kept for prompts; one alone always does."""
        if self._num_ahead is None:
            self._num_ahead = self._count_ahead()
        ahead = self._num_ahead + plan.num_new_blocks
        if self._num_ahead and ahead > int(PROMPT_SHARE * self.admission.kv.pool.num_blocks):
            return False
        self._num_ahead = ahead
        return True

    # Answers that have begun

    def go_on(self, slots: Slots, now: float) -> Slots:
        """The slots with a block for their next token.

        An answer that has outgrown its reservation takes unreserved blocks. Where there are none
        it stops, keeps what it holds, and waits for the rest by its new prediction; a borrower has
        to leave.
        """
        self._resize(slots)
        kv = self.admission.kv
        short = kv.needing_block(slots, self.slots.computed)
        if kv.can_append(short):
            kv.append_each(short)
            return slots
        stopped = []
        for slot in short.tolist():
            if kv.can_append(grown := np.array([slot])):
                kv.append_each(grown)
            else:
                stopped.append(slot)
        for slot in stopped:
            if kv.lending.lender_of(slot) >= 0:
                self.admission.preempt(slot, What.OUT_OF_BLOCKS, now)
            else:
                kv.give_up_reservation(slot)
        return slots[~np.isin(slots, stopped)]

    def _resize(self, slots: Slots) -> None:
        """Resize the reservations of answers predicted anew, as far as blocks are unreserved."""
        kv = self.admission.kv
        for slot in self.ends.renew(slots).tolist():
            wanted = kv.blocks_for(int(self.ends.of(np.array([slot]))[0]))
            more = wanted - kv.lending.num_reserved(slot)
            kv.lending.resize(slot, wanted - max(0, more - max(0, kv.num_unreserved)))

    # Answers that begin

    def begin(self, waiting: Slots, now: float) -> Slots:
        """Reserve the room of the answers that begin now; returns their slots."""
        kv = self.admission.kv
        held = kv.charged[waiting]
        lacking = np.maximum(kv.blocks_of(self.ends.of(waiting)) - held, 0)
        alone = not kv.reservations.num_slots
        if not alone and int(lacking.min()) >= kv.num_unreserved:
            return _NO_SLOTS  # at least one block is spared
        room = kv.num_unreserved - (0 if alone else self.most_spare)
        if not alone and int(lacking.sum()) > room:  # else all begin, however much is spared
            begun, _ = self._split(self.slots.order())
            room = kv.num_unreserved - self.num_spare(begun)
        chosen = self.choose(waiting, lacking, room, now)
        if alone and not chosen.size and room >= 0:  # it is longer than the pool
            chosen, lacking = np.zeros(1, np.intp), np.minimum(lacking, room)
        for place in chosen.tolist():
            num_blocks = int(held[place] + lacking[place])
            kv.reservations.reserve(int(waiting[place]), num_blocks)
        return waiting[chosen]

    def choose(self, waiting: Slots, lacking: Int32, room: int, now: float) -> Slots:
        """The places of waiting answers, lacking `lacking` blocks each, that begin in this room."""
        places = np.arange(waiting.size)
        if self.grouped:
            lengths = self.blocks_to_come(waiting)
            _, firsts, group = np.unique(lengths, return_index=True, return_inverse=True)
            places = firsts[group].argsort(kind="stable")
        fitting: Slots = places[lacking[places].cumsum() <= room]
        return fitting

    def blocks_to_come(self, waiting: Slots) -> Int32:
        """The predicted lengths of answers that wait, in whole blocks: what groups are made by. One
        that has stopped is as long as what is left of it.
        """
        to_come = self.ends.of(waiting) - self.slots.known[waiting] + 1
        blocks: Int32 = -(-to_come // self.admission.kv.block_size)
        return blocks

    def num_spare(self, begun: Slots) -> int:
        """Blocks spared beside these answers when others begin: seldom too few for what they
        outgrow. A late one has been padded anew already.
        """
        kv = self.admission.kv
        in_time = begun[~self.ends.late(begun)]
        kept = np.maximum(self.ends.of(in_time) - self.slots.prompt[in_time], 0)
        outgrown = self.admission.order.lengths.outgrown(LIKELY_SHARE).num_tokens(kept)
        return max(1, min(self.most_spare, kv.blocks_for(outgrown)))

    @property
    def most_spare(self) -> int:
        """The most blocks of `num_spare`."""
        return max(1, int(MOST_SPARE_SHARE * self.admission.kv.pool.num_blocks))

    def _with_blocks(self, slots: Slots) -> Slots:
        """These slots, which have reservations, with blocks for their next tokens."""
        kv = self.admission.kv
        short = kv.needing_block(slots, self.slots.computed)
        if kv.can_append(short):
            kv.append_each(short)
            return slots
        return slots[~np.isin(slots, short)]

    # Answers that have not begun

    def _split(self, slots: Slots) -> tuple[Slots, Slots]:
        """(slots whose answers have begun, slots that wait), in order."""
        if self.admission.all_reserved:
            return slots, _NO_SLOTS
        begun = self.admission.kv.reservations.among(slots)
        return slots[begun], slots[~begun]

    def _count_ahead(self) -> int:
        _, ahead = self._split(self.slots.order())
        return int(np.add.reduce(self.admission.kv.charged[ahead]))

    def _make_one_go_on(self, step: StepBuilder, decodes: Slots, now: float) -> None:
        """Have the first decode go on where none can, preempting others for its next block."""
        admission = self.admission
        if not decodes.size or admission.step > admission.answered_step:
            return
        first = decodes[:1]
        slot = int(first[0])
        if not admission.kv.reservations.has(slot):
            admission.kv.reservations.reserve(slot, int(admission.kv.charged[slot]))
        short = admission.kv.needing_block(first, self.slots.computed)
        if not admission.grow_or_preempt(short, now) and self.slots.sequence[slot] >= 0:
            step.add_decodes(first)


class Grouped(Decoupled):
    """Answers that are predicted to end at the same length begin together (EcoServe-SD)."""

    grouped = True
