"""Packing by the future peak: answers begin while the most that all will hold has room.

It is llmd's own. It follows deadlines and keeps two queues, as EcoServe does, but sets nothing
aside: loans between two sequences can do no better with the true lengths.
"""

from daemon.cost.step_time import StepTimeModel
from daemon.scheduler.policies.base import PACKED
from daemon.scheduler.policies.synced import SyncedSdo, ranked
from daemon.state.sequence import Sequence


class PeakPacked(SyncedSdo):
    """Answers begin while the future peak of all has room: blocks not needed yet are lent."""

    name = "packed"
    meaning = "deadlines first; memory is everybody's until it is needed"
    filler = PACKED

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """As the deadlines have it, but a stream that has begun and pauses goes before all."""
        return ranked(sequence, -1 if sequence.num_output_tokens else sequence.level)
