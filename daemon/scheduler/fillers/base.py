"""The base of fillers, which fill a step with running and waiting sequences."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from daemon.scheduler.admission import Admission, AdmissionPlan
from daemon.scheduler.step import StepBuilder
from daemon.state.sequence import Sequence
from daemon.wire.columns import Int64, Slots


class Filler(ABC):
    """Adds rows to a step until its budget, the slots or the blocks are used up.

    It decides the tokens and the order of runnable slots, and which waiting sequences are
    admitted; a queue's head comes first only where a filler takes it. Slots and blocks are given,
    or refused, by admission. A steady decode step (`steady_decode.py`) is not filled
    anew.
    """

    in_order: ClassVar[bool] = True
    """Whether sequences join in the policy's order, so that all wait while the first must."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.slots = admission.slots
        self.waiting = admission.waiting

    @abstractmethod
    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows of slots with one token to compute and with more, and of waiting sequences; both
        columns are in the policy's order.
        """

    @abstractmethod
    def before_prompts(self, decodes: Slots) -> Slots:
        """The decodes, in order, that use the budget before any prompt."""

    def is_settled(self) -> bool:
        """Whether waiting sequences change nothing in a step that decodes all running ones, except
        the first, which may be admitted.
        """
        return self.in_order or self.admission.predicted_room.settled

    def decode(self, step: StepBuilder, slots: Slots, now: float, num_kept: int = 0) -> None:
        """Add every decode that memory and the budget less `num_kept` tokens allow; where there are
        too few tokens, the decodes that waited longest.
        """
        step.add_decodes(self.grow(self.waited_longest(slots, step.budget - num_kept), now))

    def waited_longest(self, slots: Slots, most: int) -> Slots:
        """The `most` of these slots that waited longest for a step, in the order given."""
        if slots.size <= most:
            return slots
        waited = self.slots.last_step[slots].argsort(kind="stable")
        chosen: Slots = slots[np.sort(waited[:most])]
        return chosen

    def grow(self, slots: Slots, now: float) -> Slots:
        """The slots with room for their next token, after blocks were appended and, where there
        were too few, sequences preempted.
        """
        kv = self.admission.kv
        short = kv.needing_block(slots, self.slots.computed)
        if kv.can_append(short):
            kv.append_each(short)
            return slots
        waiting = self.admission.grow_or_preempt(short, now)
        going_on = self.slots.going_on(slots)
        return going_on[~np.isin(going_on, waiting)]

    def still(self, slots: Slots, epochs: Int64) -> Slots:
        """The slots that still have these epochs: the others' sequences were preempted, and another
        may have the slot.
        """
        still: Slots = slots[self.slots.epoch[slots] == epochs]
        return still

    def lets_in(self, sequence: Sequence, plan: AdmissionPlan) -> bool:
        """Whether a sequence with this plan may be admitted; admission may still refuse."""
        return True

    def continue_prompts(self, step: StepBuilder, slots: Slots) -> None:
        """Add further chunks of prompts that have started; they have their blocks already."""
        for slot in slots.tolist():
            if self.slots.members[slot] is not None:
                pending = self.slots.known.item(slot) - self.slots.computed.item(slot)
                cost = self.slots.member(slot).prompt_cost
                if count := step.chunk(pending, cost):
                    if self.admission.kv.has_states:
                        count = self._until_border(step, slot, count)
                    step.add_prompt(slot, count, cost)

    def admit_in_order(self, step: StepBuilder, now: float) -> None:
        """Admit waiting sequences in the policy's order while budget, slots and memory last."""
        waiting, admission = self.waiting, self.admission
        while step.room > 0 and waiting.num:
            sequence = admission.next_waiting(now)
            if sequence is None or not self.admit_one(sequence, step, now):
                return

    def admit_due(self, step: StepBuilder, now: float) -> None:
        """Admit streams whose pauses have to end, likewise."""
        while self.admission.pace.due(now) is not None and step.room > 0:
            sequence = self.admission.next_waiting(now)
            if sequence is None or not self.admit_one(sequence, step, now):
                return

    def admit_one(self, sequence: Sequence, step: StepBuilder, now: float) -> bool:
        """Admit a waiting sequence; whether that was possible."""
        admission = self.admission
        if not (self.slots.vacant or admission.may_displace(sequence, now)):
            return False
        if not admission.may_join():
            return False
        plan, cost = admission.plan(sequence), sequence.prompt_cost
        count = step.chunk(sequence.num_known_tokens - plan.num_shared_tokens, cost)
        if not count or not self.lets_in(sequence, plan):
            return False
        if not admission.make_room(sequence, plan, now):
            return False
        slot = admission.admit(sequence, plan, now)
        if not (plan.fetches and admission.residency.is_returning(sequence)):
            if admission.kv.has_states:
                count = self._until_border(step, slot, count)
            step.add_prompt(slot, count, cost)
        return True

    def _until_border(self, step: StepBuilder, slot: int, count: int) -> int:
        """The tokens of a slot's chunk up to where a snapshot of its states is due."""
        start = self.slots.computed.item(slot)
        most = self.admission.kv.until_border(slot, start, count)
        step.any_partial |= most < count
        return most
