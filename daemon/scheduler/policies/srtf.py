"""Shortest remaining time first, by predicted output tokens: the papers' oracle baseline."""

from daemon.cost.step_time import StepTimeModel
from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.policies.remaining import remaining_s
from daemon.state.sequence import Sequence


class Srtf(Policy):
    """Stall-free mixing ordered by the time left; a shorter sequence preempts a longer one."""

    name = "srtf"
    meaning = "least predicted time left first; a shorter one displaces"
    swap = PROACTIVE
    displaces = True
    counts_down = True

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Seconds left."""
        return remaining_s(sequence, step_time)
