"""Mixed steps: every decode, and the rest of the budget for prompts."""

import numpy as np

from daemon.scheduler.admission import Admission
from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.step import LEAST_SHARE, StepBuilder
from daemon.wire.columns import Slots

_NO_SLOTS = np.zeros(0, np.intp)


class Mixed(Filler):
    """Decodes first, and streams whose pauses have to end; then prompts, in the policy's order.

    A stream that comes from elsewhere joins in the step after its KV has landed. So the first step
    that is planned meanwhile is short: decodes alone, where there are any. No two steps in a row
    are short, or a handoff in each step would keep prompts out for ever, and none is while a
    stream's pause has to end.
    """

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission)
        self._short_step = -1  # the newest plan that was short

    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows."""
        epochs = self.slots.epoch[prompts] if prompts.size else None
        share = max(1, int(LEAST_SHARE * step.budget))
        # Where decodes leave little, they leave a share to resumed streams.
        crowded = decodes.size > step.budget - share
        self.decode(step, decodes, now, share if crowded and self._hurries(prompts, now) else 0)
        is_short = self.admission.joined and self._awaits_stream and not step.empty
        if is_short and not self._hurries(prompts, now):
            self._short_step = self.admission.step + 1
            return
        if epochs is None:
            self.admit_in_order(step, now)
            return
        prompts, pace = self.still(prompts, epochs), self.admission.pace
        if pace.max_pause_s:
            back = pace.came_back(prompts)  # lost KV of resumed streams comes first
            self.continue_prompts(step, prompts[back])
            prompts = prompts[~back]
            epochs = self.slots.epoch[prompts]
            self.admit_due(step, now)
            prompts = self.still(prompts, epochs)
        prompts, behind = self._split(prompts, now)
        self.continue_prompts(step, prompts)
        if not behind.size:
            self.admit_in_order(step, now)
            return
        epochs = self.slots.epoch[behind]
        self.admit_in_order(step, now)
        self.continue_prompts(step, self.still(behind, epochs))

    def before_prompts(self, decodes: Slots) -> Slots:
        """All decodes."""
        return decodes

    def _hurries(self, prompts: Slots, now: float) -> bool:
        """Whether a stream's pause has to end, or its lost KV is being computed."""
        pace = self.admission.pace
        return pace.due(now) is not None or bool(pace.came_back(prompts).any())

    @property
    def _awaits_stream(self) -> bool:
        """Whether a stream from elsewhere got its slot since the newest plan, which was not short,
        and its KV is still on its way.
        """
        if self._short_step == self.admission.step:
            return False
        members = (self.slots.member(slot) for slot in self.admission.joined)
        residency = self.admission.residency
        return any(
            residency.is_returning(member) and member.residence.remote_kv for member in members
        )

    def _split(self, slots: Slots, now: float) -> tuple[Slots, Slots]:
        """(slots that rank before the first waiting sequence, those behind it): a short prompt does
        not wait until a long one is computed.
        """
        order = self.admission.order
        if not (slots.size and order.policy.displaces and self.waiting):
            return slots, _NO_SLOTS
        return order.split_at_first_waiting(slots, now)
