"""Priority: the client's number decides, then arrival; a better one takes a worse one's place."""

from daemon.scheduler.policies.base import ARRIVAL_BITS, Policy
from daemon.sequence import Sequence


class Priority(Policy):
    """Stall-free mixing ordered by (priority, arrival), with preemption."""

    name = "priority"

    def rank(self, sequence: Sequence) -> int:
        """Priority above, arrival below."""
        return (sequence.priority << ARRIVAL_BITS) + sequence.arrival

    def displaces(self, waiting: Sequence, running: Sequence, step: int) -> bool:
        """Only strictly better priority preempts."""
        return waiting.priority < running.priority
