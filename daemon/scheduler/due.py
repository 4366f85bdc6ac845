"""An answer's due time: its own deadline, or its key's scale of its time alone (EcoServe).

A scale is that of section 4: scale x (t_p + t_g x length). A deadline ends nothing: policies that
follow deadlines order by it, and whether answers kept it is counted under every policy.
"""

from daemon.cost.step_time import StepTimeModel
from daemon.state.sequence import UNKNOWN_TOKENS, Sequence


def likely_tokens(sequence: Sequence) -> int:
    """The length of its answer that deadlines assume: as predicted, or a guess."""
    predicted = sequence.predicted_tokens
    return min(sequence.max_tokens, UNKNOWN_TOKENS if predicted < 0 else predicted)


def due_s(sequence: Sequence, step_time: StepTimeModel, num_tokens: int) -> float:
    """The due time of an answer of `num_tokens`; 0: never, or its time alone is unknown."""
    if sequence.deadline_s or not sequence.slo_scale:
        return sequence.deadline_s
    alone_s = step_time.alone_s(sequence.num_prompt_tokens, num_tokens)
    return sequence.arrived_s + sequence.slo_scale * alone_s if alone_s else 0.0
