"""What is counted and learned of an answer that is complete."""

from daemon.core.instance import Instance
from daemon.core.snapshot import Counters
from daemon.scheduler.due import due_s
from daemon.state.sequence import Sequence


def note_answer(counters: Counters, instance: Instance, sequence: Sequence, now: float) -> None:
    """Count its time per token, how wrong its prediction was, and whether it came when due."""
    predicted, true = sequence.predicted_tokens, sequence.num_output_tokens
    counters.note_answer(now - sequence.first_token_s, true, predicted)
    if not true:
        return
    has_due = sequence.deadline_s or sequence.slo_scale
    if has_due and (due := due_s(sequence, instance.step_time, true)):
        counters.note_due(0.0 if sequence.deadline_s else sequence.slo_scale, now <= due)
    instance.scheduler.on_ended(sequence, now)
