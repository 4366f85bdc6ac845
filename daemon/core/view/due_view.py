"""Deadlines of living sequences, for viewers: counts by SLO class, and the earliest."""

from collections.abc import Iterable, Sequence

import msgspec

from daemon.core.instance.instance import Instance
from daemon.core.values.snapshot import MOST_SCALES, DueNow
from daemon.scheduler import due
from daemon.state.request import State
from daemon.state.sequence import Sequence as TokenStream


def due_now(
    sequences: Iterable[TokenStream], instances: Sequence[Instance], now: float
) -> tuple[DueNow, ...]:
    """Sequences with a deadline, counted by scale; of very many scales, the smallest, in order."""
    found: dict[float, DueNow] = {}
    for sequence in sequences:
        if sequence.deadline_s or sequence.slo_scale:
            scale = 0.0 if sequence.deadline_s else sequence.slo_scale
            due_s = due_of(sequence, instances, num_delivered(sequence, instances))
            found[scale] = _with(found.get(scale) or DueNow(scale), sequence, due_s, now)
    return tuple(found[scale] for scale in sorted(found)[:MOST_SCALES])


def _with(known: DueNow, sequence: TokenStream, due_s: float, now: float) -> DueNow:
    """The known counts with one more sequence."""
    is_running = sequence.state is State.RUNNING
    is_late = 0.0 < due_s < now
    left_s = known.least_left_s
    if due_s and not is_late:
        left_s = min(due_s - now, due_s - now if left_s is None else left_s)
    return msgspec.structs.replace(
        known,
        running=known.running + is_running,
        waiting=known.waiting + (not is_running),
        late=known.late + is_late,
        least_left_s=left_s,
    )


def due_of(sequence: TokenStream, instances: Sequence[Instance], num_tokens: int) -> float:
    """The due time of a sequence with `num_tokens` so far: by its predicted length, or its present
    one. 0: never, or unknown.
    """
    if sequence.deadline_s or not sequence.slo_scale or sequence.instance < 0:
        return sequence.deadline_s
    likely = max(num_tokens, due.likely_tokens(sequence))
    return due.due_s(sequence, instances[sequence.instance].step_time, likely)


def num_delivered(sequence: TokenStream, instances: Sequence[Instance]) -> int:
    """Output tokens so far; while it runs, its slot has them."""
    if sequence.state is not State.RUNNING:
        return sequence.num_output_tokens
    running = instances[sequence.instance].scheduler.running
    return running.delivered_of(sequence) - sequence.num_prompt_tokens
