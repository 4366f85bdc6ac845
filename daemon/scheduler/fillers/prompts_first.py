"""Mixed steps of prompts first: decodes get what is left, and go first once they have waited."""

import numpy as np

from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.step import StepBuilder
from daemon.wire.columns import Slots

MOST_PASSED = 4
"""A decode is passed over for prompts in so many steps, one after another, and then goes before
them. The paper bounds preemptions and names no number. More is a longer gap, and no work saved."""


class PromptsFirst(Filler):
    """Decodes that have waited long enough; then prompts; then the other decodes, the one that has
    waited longest first.

    So that no decode waits for more than MOST_PASSED steps, as long as the budget has a token for
    each that runs; where it has fewer, for as many steps more as it takes to go round.
    """

    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows. Decodes get their blocks before prompts take any, also those that may wait: a
        prompt that is admitted must not give way in the same step.
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
        """Those that were passed over as often as may be."""
        passed = self.admission.step - self.slots.last_step[decodes]
        due: Slots = decodes[passed >= MOST_PASSED]
        return due
