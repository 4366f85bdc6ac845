"""The first steps, before anyone waits for them: kernels load and workspaces grow."""

import numpy as np

from daemon.batch import Batch
from daemon.engine.protocol import Join, Load, Plan
from daemon.engine.step import Engine
from daemon.request import SamplingParams
from daemon.wire.columns import int32

_DECODE_STEPS = 4


def warm_up(engine: Engine, load: Load) -> float:
    """Run a prompt and a few decode steps; returns the fastest decode step's seconds.

    It scribbles on blocks of the still empty pool and leaves its slot again.
    """
    blocks = min(engine.cache.num_blocks, engine.slots.block_table.shape[1])
    room = min(blocks * load.block_size, load.max_len)
    length = max(1, min(load.max_batch_tokens, room - _DECODE_STEPS))
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    join = Join(0, 0, length, sampling, int32())
    engine.run(_plan(0, length, np.zeros(length, np.int32), range(blocks), (join,)))
    times = [
        engine.run(_plan(length + step, 1, int32(), (), ())).elapsed_s
        for step in range(min(_DECODE_STEPS, room - length))
    ]
    engine.run(_plan(0, 1, int32([0]), (), (), left=(0,)))
    return min(times, default=0.0)


def _plan(
    start: int,
    count: int,
    inputs: np.ndarray,
    blocks: range | tuple[int, ...],
    joins: tuple[Join, ...],
    left: tuple[int, ...] = (),
) -> Plan:
    """A step of one sequence in slot 0."""
    one = np.ones(1, np.uint8)
    batch = Batch(
        instance=0,
        step=0,
        slots=int32([0]),
        starts=int32([start]),
        counts=int32([count]),
        samples=one,
        fed=one if len(inputs) else np.zeros(1, np.uint8),
        table_slots=int32([0] * len(blocks)),
        table_indices=int32(range(len(blocks))),
        table_blocks=int32(blocks),
        copy_sources=int32(),
        copy_targets=int32(),
        left_slots=int32(left),
        joined_slots=int32([join.slot for join in joins]),
        joined_sequences=np.zeros(len(joins), np.int64),
    )
    return Plan(batch, inputs, joins)
