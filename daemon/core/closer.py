"""What a viewer may ask beyond the snapshot: one sequence's story, and who owns a pool's blocks."""

import numpy as np

from daemon.core.core import Core
from daemon.core.instance import shrunk
from daemon.core.snapshot import BlockOwners, Mark, Story
from daemon.core.view import status
from daemon.request import State
from daemon.sequence import Sequence
from daemon.wire.columns import Int32, int32


def story(core: Core, sequence_id: int, now: float) -> Story:
    """The story of a sequence that lives or has ended a short while ago; else one without marks."""
    living = core.sequences.get(sequence_id)
    ended = (one for one in reversed(core.ended) if one.id == sequence_id)
    sequence = living or next(ended, None)
    if sequence is None:
        return Story(sequence_id, now)
    return Story(
        sequence_id,
        now,
        tuple(Mark(*mark) for mark in sequence.story.marks),
        sequence.story.num_dropped,
        status(core, living, now) if living is not None else None,
        _blocks(core, sequence),
        sequence.first_token_s,
    )


def _blocks(core: Core, sequence: Sequence) -> Int32:
    if sequence.state is not State.RUNNING:
        return int32()
    return int32(core.instances[sequence.instance].scheduler.kv.table.blocks(sequence.slot))


def block_owners(core: Core, instance: int, now: float) -> BlockOwners:
    """Who has each block of an instance now. Raises IndexError for one that does not exist."""
    scheduler = core.instances[instance].scheduler
    pool, table = scheduler.kv.pool, scheduler.kv.table
    owners = np.full(pool.num_blocks, -1, np.int64)
    for slot in scheduler.slots.order().tolist():
        owners[table.blocks(slot)] = scheduler.slots.member(slot).id
    return BlockOwners(instance, now, shrunk(owners), shrunk(pool.owners()))
