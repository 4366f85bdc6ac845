"""The time that a sequence still needs, by its predicted length and the step-time model."""

from daemon.cost.step_time import StepTimeModel
from daemon.state.sequence import Sequence


def remaining_s(sequence: Sequence, step_time: StepTimeModel) -> float:
    """Time of the tokens still to compute and to generate (ALISE eq. 4 and 5).

    One that waits has to compute what of it is not kept in host memory, which gives a token; the
    answer's further tokens take a step each, in the company that steps have on average.
    """
    if sequence.slot >= 0:
        return sequence.remaining_tokens * step_time.mean_s
    start_s = step_time.prefill_s(
        max(1, sequence.num_known_tokens - sequence.residence.parked_tokens)
    )
    return start_s + (sequence.remaining_tokens - 1) * step_time.mean_s
