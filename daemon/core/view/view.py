"""Views of a Core: its snapshot, a sequence's story, and the owners of a pool's blocks."""

from itertools import islice

import msgspec
import numpy as np

from daemon.core.core import Core
from daemon.core.instance.instance import shrunk
from daemon.core.values.snapshot import (
    MAX_SEQUENCES_SHOWN,
    BlockOwners,
    CoreSnapshot,
    Mark,
    SequenceStatus,
    Story,
    TransferStatus,
)
from daemon.core.view.due_view import due_now, due_of, num_delivered
from daemon.scheduler.due import due_s
from daemon.state.request import State
from daemon.state.sequence import Sequence, Where
from daemon.wire.columns import Int32, int32

_SHOWN = {
    Where.NOWHERE: "",
    Where.DEVICE: "device",
    Where.BOTH: "both",
    Where.HOST: "host",
    Where.AWAY: "elsewhere",
    Where.RETURNING: "moving",
}


def snapshot(core: Core, now: float) -> CoreSnapshot:
    """The Core at `now`, copied; running sequences come first."""
    by_state = sorted(core.sequences.values(), key=lambda s: (s.state is not State.RUNNING, s.id))
    return CoreSnapshot(
        instances=tuple(instance.status() for instance in core.instances),
        sequences=tuple(
            status(core, sequence, now) for sequence in islice(by_state, MAX_SEQUENCES_SHOWN)
        ),
        running=core.num_running,
        waiting=core.num_waiting,
        draining=core.draining,
        counters=msgspec.structs.replace(core.counters),
        transfers=_transfers(core, now),
        flips=core.migrator.flips.status(now),
        roles=core.watcher.status(now),
        due=due_now(by_state, core.instances, now),
    )


def _transfers(core: Core, now: float) -> tuple[TransferStatus, ...]:
    transfers, homes = core.migrator.transfers, core.instances
    return tuple(
        TransferStatus(
            transfer=transfer.number,
            sequence=transfer.sequence.id,
            source=homes[transfer.source].config.name,
            target=homes[transfer.target].config.name,
            num_blocks=len(transfer.blocks),
            num_bytes=len(transfer.blocks) * homes[transfer.target].block_bytes,
            age_s=now - transfer.began_s,
            expected_s=transfers.links.time(transfer.source, transfer.target).predict_s(
                len(transfer.blocks)
            ),
            ahead=transfer.ahead,
            from_host=transfer.from_host,
        )
        for transfer in transfers
    )


def status(core: Core, sequence: Sequence, now: float) -> SequenceStatus:
    """One living sequence's part of a snapshot."""
    computed = blocks = 0
    outputs = num_delivered(sequence, core.instances)
    state = sequence.state.name.lower()
    instance = core.instances[sequence.instance] if sequence.instance >= 0 else None
    if instance is not None and sequence.state is State.RUNNING:
        running = instance.scheduler.running
        computed = running.computed_of(sequence)
        blocks = int(instance.kv.charged[sequence.slot])
        state = "prefill" if running.is_prefill(sequence) else "decode"
        if instance.scheduler.is_ready(sequence):
            state = "ready"
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


def story(core: Core, sequence_id: int, now: float) -> Story:
    """The story of a sequence that lives or has ended a short while ago; else one without marks."""
    living = core.sequences.get(sequence_id)
    ended = (sequence for sequence in reversed(core.ended) if sequence.id == sequence_id)
    sequence = living or next(ended, None)
    if sequence is None:
        return Story(sequence_id, now)
    paused_s, behind_prompts_s = _paused(core, sequence, now)
    return Story(
        sequence=sequence_id,
        time_s=now,
        marks=tuple(Mark(*mark) for mark in sequence.story.marks),
        num_dropped=sequence.story.num_dropped,
        status=status(core, living, now) if living is not None else None,
        blocks=_blocks(core, sequence),
        first_token_s=sequence.first_token_s,
        deadline_s=_due(core, sequence, is_living=living is not None),
        paused_s=paused_s,
        behind_prompts_s=behind_prompts_s,
        slo_scale=0.0 if sequence.deadline_s else sequence.slo_scale,
    )


def _due(core: Core, sequence: Sequence, *, is_living: bool) -> float:
    """The due time of a sequence; of an ended answer by its true length, as it is counted."""
    if is_living:
        return due_of(sequence, core.instances, num_delivered(sequence, core.instances))
    if sequence.instance < 0:
        return sequence.deadline_s
    model = core.instances[sequence.instance].step_time
    return due_s(sequence, model, sequence.num_output_tokens)


def _paused(core: Core, sequence: Sequence, now: float) -> tuple[float, float]:
    """(its pauses so far, the part behind prompts)."""
    behind_prompts_s = sequence.behind_prompts_s
    if sequence.state is State.RUNNING:
        running = core.instances[sequence.instance].scheduler.running
        behind_prompts_s += running.behind_prompts_s(sequence)
    since_s = sequence.paused_since_s
    open_s = now - since_s if since_s >= 0.0 else 0.0
    return sequence.paused_s + open_s + behind_prompts_s, behind_prompts_s


def _blocks(core: Core, sequence: Sequence) -> Int32:
    if sequence.state is not State.RUNNING:
        return int32()
    return int32(core.instances[sequence.instance].kv.table.blocks(sequence.slot))


def block_owners(core: Core, instance: int, now: float) -> BlockOwners:
    """The owner of each block of an instance. Raises IndexError for an unknown instance."""
    home = core.instances[instance]
    pool = home.kv.pool
    owners = np.full(pool.num_blocks, -1, np.int64)
    for sequence in home.scheduler.running.sequences:
        owners[home.kv.table.blocks(sequence.slot)] = sequence.id
    return BlockOwners(instance, now, shrunk(owners), shrunk(pool.owners()))
