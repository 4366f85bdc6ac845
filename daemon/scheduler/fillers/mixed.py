"""Mixed steps: every decode, and the rest of the budget for prompts."""

import numpy as np

from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.step import StepBuilder
from daemon.wire.columns import Slots

_NO_SLOTS = np.zeros(0, np.intp)


class Mixed(Filler):
    """Decodes first, and streams whose pauses have to end; then prompts, in the policy's order.

    A stream that comes from elsewhere joins in the step after its KV has landed. So the first step
    that is planned meanwhile is short: decodes alone, where there are any.
    """

    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows."""
        epochs = self.slots.epoch[prompts]
        self.decode(step, decodes, now)
        if self._awaits_stream and not step.empty:
            return
        if not prompts.size:
            self.admit_in_order(step, now)
            return
        prompts = self.still(prompts, epochs)
        back = self.admission.pace.came_back(prompts)  # what is lost of a stream's KV comes first
        self.continue_prompts(step, prompts[back])
        prompts = prompts[~back]
        epochs = self.slots.epoch[prompts]
        self.admit_due(step, now)
        prompts, behind = self._split(self.still(prompts, epochs), now)
        self.continue_prompts(step, prompts)
        epochs = self.slots.epoch[behind]
        self.admit_in_order(step, now)
        self.continue_prompts(step, self.still(behind, epochs))

    def before_prompts(self, decodes: Slots) -> Slots:
        """All of them."""
        return decodes

    @property
    def _awaits_stream(self) -> bool:
        """Whether a stream from elsewhere got its slot since the newest plan, and its KV is still
        on its way.
        """
        members = (self.slots.member(slot) for slot in self.admission.joined)
        residency = self.admission.residency
        return any(residency.is_returning(one) and one.residence.parcel for one in members)

    def _split(self, slots: Slots, now: float) -> tuple[Slots, Slots]:
        """(slots that rank before the first that waits, those behind it): a short prompt does not
        wait until a long one is computed.
        """
        order = self.admission.order
        if not (slots.size and order.policy.displaces and self.waiting):
            return slots, _NO_SLOTS
        return order.split_at_first_waiting(slots, now)
