"""Shortest job first: by predicted length, without preemption."""

from daemon.cost.step_time import StepTimeModel
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.policies.remaining import remaining_s
from daemon.state.sequence import Sequence


class Sjf(Policy):
    """Stall-free mixing; the shortest waiting sequence comes next, without preemption."""

    name = "sjf"
    meaning = "shortest predicted first; no running one is preempted"

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Seconds left."""
        return remaining_s(sequence, step_time)
