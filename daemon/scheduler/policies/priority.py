"""Priority: the client's number decides, then arrival; a better one takes a worse one's place."""

from daemon.cost.step_time import StepTimeModel
from daemon.scheduler.policies.base import Policy
from daemon.state.sequence import Sequence


class Priority(Policy):
    """Stall-free mixing ordered by (priority, arrival), with preemption."""

    name = "priority"
    meaning = "the client's number, then arrival; a better one displaces"
    displaces = True

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """The client's number."""
        return float(sequence.priority)
