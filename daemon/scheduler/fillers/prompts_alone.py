"""Steps of prompts alone, before any decode."""

from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.step import StepBuilder
from daemon.wire.columns import Slots


class PromptsAlone(Filler):
    """Prompts while there are any, and no decode beside them; else decodes."""

    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows."""
        self.continue_prompts(step, prompts)
        self.admit_in_order(step, now)
        if step.empty:
            self.decode(step, decodes, now)

    def before_prompts(self, decodes: Slots) -> Slots:
        """No decode."""
        return decodes[:0]
