"""Shortest remaining time first, by predicted output tokens: the papers' oracle baseline."""

from daemon.scheduler.policies.base import ARRIVAL_BITS, Policy
from daemon.sequence import Sequence


class Srtf(Policy):
    """Stall-free mixing ordered by what is left to generate; a shorter one takes a longer's place.

    Everything that runs advances a token a step, so the step in which a sequence is expected to
    end orders those that run, and does not change while they do.
    """

    name = "srtf"

    def rank(self, sequence: Sequence) -> int:
        """Remaining tokens above, arrival below."""
        return (sequence.remaining_tokens << ARRIVAL_BITS) + sequence.arrival

    def seated_rank(self, sequence: Sequence, step: int) -> int:
        """The step in which it is expected to end above, arrival below."""
        return sequence.rank + (step << ARRIVAL_BITS)

    def displaces(self, waiting: Sequence, running: Sequence, step: int) -> bool:
        """Only what is expected to end strictly earlier preempts."""
        ends = self.seated_rank(waiting, step) >> ARRIVAL_BITS
        return ends < running.rank >> ARRIVAL_BITS
