"""Mixed steps: every decode, and the rest of the budget for prompts."""

import numpy as np

from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.step import StepBuilder
from daemon.wire.columns import Slots

_NO_SLOTS = np.zeros(0, np.intp)


class Mixed(Filler):
    """Decodes first; then prompts that have started and new ones, in the policy's order."""

    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows."""
        self.decode(step, decodes, now)
        if not prompts.size:
            self.admit_in_order(step, now)
            return
        back = self.admission.pace.came_back(prompts)  # what is lost of a stream's KV comes first
        self.continue_prompts(step, prompts[back])
        prompts, behind = self._split(prompts[~back], now)
        self.continue_prompts(step, prompts)
        epochs = self.slots.epoch[behind]
        self.admit_in_order(step, now)
        if behind.size:  # of these some may have given way, and others have their slots
            self.continue_prompts(step, behind[self.slots.epoch[behind] == epochs])

    def _split(self, slots: Slots, now: float) -> tuple[Slots, Slots]:
        """(slots that rank before the first that waits, those behind it): a short prompt does not
        wait until a long one is computed.
        """
        order = self.admission.order
        if not (slots.size and order.policy.displaces and self.waiting):
            return slots, _NO_SLOTS
        slots = slots[self.slots.sequence[slots] >= 0]  # without those that gave way to a decode
        return order.split_at_first_waiting(slots, now)
