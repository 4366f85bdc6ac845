"""From a Core to its snapshot."""

from itertools import islice

import msgspec

from daemon.core.core import Core
from daemon.core.snapshot import MAX_SEQUENCES_SHOWN, CoreSnapshot, SequenceStatus
from daemon.request import State
from daemon.sequence import Sequence, Where

_SHOWN = {
    Where.NOWHERE: "",
    Where.DEVICE: "gpu",
    Where.BOTH: "both",
    Where.HOST: "host",
    Where.RETURNING: "moving",
}


def snapshot(core: Core, now: float) -> CoreSnapshot:
    """A copy of what viewers see, at `now`; running sequences come first in the list."""
    by_state = sorted(core.sequences.values(), key=lambda s: (s.state is not State.RUNNING, s.id))
    return CoreSnapshot(
        instances=tuple(instance.status() for instance in core.instances),
        sequences=tuple(status(core, one, now) for one in islice(by_state, MAX_SEQUENCES_SHOWN)),
        running=core.num_running,
        waiting=core.num_waiting,
        draining=core.draining,
        counters=msgspec.structs.replace(core.counters),
    )


def status(core: Core, sequence: Sequence, now: float) -> SequenceStatus:
    """What viewers see of one living sequence."""
    computed = blocks = 0
    outputs = sequence.num_output_tokens
    state = sequence.state.name.lower()
    instance = core.instances[sequence.instance] if sequence.instance >= 0 else None
    if instance is not None and sequence.state is State.RUNNING:
        table = instance.scheduler.slots
        computed = int(table.computed[sequence.slot])
        outputs = int(table.delivered[sequence.slot]) - sequence.num_prompt_tokens
        blocks = int(instance.scheduler.kv.table.held[sequence.slot])
        state = "decode" if computed >= table.fed_until[sequence.slot] else "prefill"
    return SequenceStatus(
        sequence=sequence.id,
        state=state,
        instance=instance.config.name if instance is not None else "",
        age_s=now - sequence.arrived_s,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=computed,
        num_output_tokens=outputs,
        max_tokens=sequence.max_tokens,
        num_blocks=blocks,
        priority=sequence.priority,
        preemptions=sequence.preemptions,
        predicted_tokens=sequence.predicted_tokens,
        level=sequence.level,
        num_host_blocks=len(sequence.residence.host_blocks),
        residency=_SHOWN[sequence.residence.where],
    )
