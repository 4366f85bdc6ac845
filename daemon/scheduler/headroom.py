"""The headroom of an instance's next plan: its spare room without a preemption."""

import numpy as np

from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.step import chunk_of
from daemon.state.sequence import Sequence


class Headroom:
    """The slots, blocks and tokens left; each sequence that is taken in uses some.

    With `later`, slots and blocks that get free without a preemption count as available.
    """

    def __init__(self, scheduler: Scheduler, later: bool = False) -> None:
        self._admission = admission = scheduler.admission
        self._policy = scheduler.policy
        self._limits = limits = scheduler.limits
        slots, kv = scheduler.slots, scheduler.kv
        leaving = slots.leaving() if later else slots.order()[:0]
        self._slots = len(slots.vacant) + leaving.size
        self._blocks = kv.num_unreserved + (admission.coming(leaving) if later else 0)
        order = slots.order()
        pending = (slots.known - slots.computed)[order]
        decodes = scheduler.filler.before_prompts(order[pending == 1])
        self._budget = limits.prompt_tokens(decodes.size)
        self._alone_budget = limits.max_batch_tokens - decodes.size  # of the step's first prompt
        for slot in order[pending > 1].tolist():
            left = int(slots.known[slot] - slots.computed[slot])
            self._compute(left, slots.member(slot).prompt_cost)
        self._alone = not slots.num_running
        staying = order[~np.isin(order, leaving)] if leaving.size else order
        self._decode_room = admission.decode_admission.room(staying, kv)
        if admission.closed:
            self._slots = 0  # none joins

    @property
    def none(self) -> bool:
        """Whether not even the shortest sequence fits."""
        return self._slots <= 0 or self._budget <= 0 or self._blocks <= 0

    def take(self, sequence: Sequence) -> bool:
        """Take in a sequence that waits here or elsewhere; False if it does not fit."""
        if self.none:
            return False
        admission = self._admission
        if not (sequence.num_output_tokens or admission.pace.may_begin(sequence, admission.kv)):
            return False
        plan = admission.plan(sequence)
        blocks = plan.num_new_blocks + admission.kv.pool.idle_among(plan.matched)
        pending = sequence.num_known_tokens - plan.num_shared_tokens
        if blocks + (0 if self._alone else admission.num_spare) > self._blocks:
            return False
        room = self._decode_room
        if room is not None:
            needed = room.num_needed(sequence, plan.num_reusable)
            if needed + admission.kv.pool.idle_among(plan.matched) > self._blocks:
                return False
        if not self._compute(pending, sequence.prompt_cost):
            return False
        self._slots -= 1
        self._blocks -= blocks
        self._alone = False
        if room is not None:
            room.add(sequence, plan.num_blocks)
        return True

    def _compute(self, pending: int, cost: int) -> bool:
        """Spend the tokens of a prompt's next chunk; False if the budget has none for it."""
        chunk = self._limits.prefill_chunk
        alone = self._alone_budget
        count = chunk_of(pending, cost, self._policy, chunk, self._budget, alone)
        self._budget -= count * cost
        if count:
            self._alone_budget = 0
        return count > 0
