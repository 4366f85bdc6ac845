"""Mixed steps, prompts first: decodes get the rest, and go first once they have waited."""

import numpy as np

from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.step import StepBuilder
from daemon.wire.columns import Slots

MOST_PASSED = 4
"""Consecutive steps in which a decode is passed over for prompts, before it goes before them. The
paper bounds preemptions and names no number. More is a longer gap, and saves no work."""


class PromptsFirst(Filler):
    """Decodes that have waited long enough; then prompts; then the other decodes, longest wait
    first.

    No decode waits for more than MOST_PASSED steps, as long as the budget has a token for each
    running sequence; where it has fewer, for as many more steps as a round takes.
    """

    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows. Decodes get their blocks before prompts take any, also those that may wait: an
        admitted prompt must not be preempted in the same step.
        """
        decodes = self.grow(decodes, now)
        decodes = decodes[np.argsort(self.slots.last_step[decodes], kind="stable")]
        num_due = min(self.before_prompts(decodes).size, step.budget)
        step.add_decodes(decodes[:num_due])
        others = decodes[num_due:]
        epochs = self.slots.epoch[others]
        self.continue_prompts(step, prompts)
        self.admit_in_order(step, now)
        others = self.still(others, epochs)
        step.add_decodes(others[: max(0, step.budget)])

    def before_prompts(self, decodes: Slots) -> Slots:
        """The decodes that were passed over MOST_PASSED times."""
        passed = self.admission.step - self.slots.last_step[decodes]
        due: Slots = decodes[passed >= MOST_PASSED]
        return due
