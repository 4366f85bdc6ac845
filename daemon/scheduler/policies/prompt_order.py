"""TetriInfer's orders of prompts (section 3.3.1): shortest or longest first, batch by batch.

Its third order, first come first served, is `sarathi`.
"""

from daemon.cost.step_time import StepTimeModel
from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import Policy
from daemon.state.sequence import Sequence

SCHED_BATCH = 16
"""PrefillSchedBatch: consecutive arrivals that are ordered together. None overtakes an earlier
batch, so that no prompt starves; an order of all waiting prompts would gain more."""

_LONGEST = 1 << 24
"""The longest prompts that ranks tell apart; they are exact for 2^29 batches."""


class PromptSjf(Policy):
    """Stall-free mixing; within a batch of arrivals the shortest prompt first."""

    name = "prompt_sjf"
    meaning = "by 16 in order of arrival; of these the shortest prompt first"
    swap = PROACTIVE

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Its batch, then its prompt's length."""
        return _rank(sequence, _within(sequence))


class PromptLjf(Policy):
    """Stall-free mixing; within a batch of arrivals the longest prompt first."""

    name = "prompt_ljf"
    meaning = "by 16 in order of arrival; of these the longest prompt first"
    swap = PROACTIVE

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Its batch, then its prompt's length, the longest first."""
        return _rank(sequence, _LONGEST - 1 - _within(sequence))


def _within(sequence: Sequence) -> int:
    return min(sequence.num_prompt_tokens, _LONGEST - 1)


def _rank(sequence: Sequence, place: int) -> float:
    return float(sequence.arrival // SCHED_BATCH * _LONGEST + place)
