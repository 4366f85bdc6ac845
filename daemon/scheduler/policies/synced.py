"""EcoServe: prompts and answers wait in queues of their own, and answers get exactly their room.

`synced` is all of it. The others are its ablations, as the paper names them; each adds one part to
the one before: two queues (d), groups of one length (s), the order (o), and at last lending.
"""

from daemon.cost.step_time import StepTimeModel
from daemon.scheduler.due import due_s, likely_tokens
from daemon.scheduler.policies.base import (
    DECOUPLED,
    GROUPED,
    NESTED,
    ORDERED,
    PREDICTION,
    Policy,
)
from daemon.state.sequence import Sequence

SLO_SCALE = 2.0
"""The deadline of a sequence without one, in multiples of its time at the present pace (section 4).
"""

RANGE_TOKENS = 128
"""Lengths within a range of this many tokens are alike (section 3.3)."""

MOST_RANGES = 10_000


class SyncedD(Policy):
    """Two queues, first come first served, and room for the predicted length of an answer."""

    name = "synced-d"
    meaning = "arrival order; answers begin when their predicted length has room"
    filler = DECOUPLED
    reserves = PREDICTION
    batch_tokens = 2048
    fills_device = True


class SyncedSd(SyncedD):
    """Answers of the same predicted length begin together."""

    name = "synced-sd"
    meaning = "the same; answers of the same predicted length begin together"
    filler = GROUPED


class SyncedSdo(SyncedD):
    """Order by ranges of the time left, then by held KV, then the longest first."""

    name = "synced-sdo"
    meaning = "the same, by deadline, then memory held, then length"
    filler = ORDERED
    nears = True

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Its range of time; within it long prompts come first."""
        return ranked(sequence, sequence.level)

    def begin_by_s(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """The time by which it has to begin to meet its deadline, given the predicted length.

        A deadline is for the whole answer, so a sequence ordered by it alone comes too late.
        """
        num_tokens = likely_tokens(sequence)
        usual_s = step_time.prefill_s(sequence.num_prompt_tokens) + num_tokens * step_time.mean_s
        due = due_s(sequence, step_time, num_tokens)
        return (due or sequence.arrived_s + SLO_SCALE * usual_s) - usual_s


class Synced(SyncedSdo):
    """A reservation lends the half that it needs last, and so on within the halves."""

    name = "synced"
    meaning = "EcoServe: all of these, and reserved halves are lent"
    filler = NESTED


def ranked(sequence: Sequence, level: int) -> float:
    """The rank of a range of time, and within it of a range of lengths."""
    length = min(sequence.num_known_tokens // RANGE_TOKENS, MOST_RANGES - 1)
    return float(level * MOST_RANGES - length)
