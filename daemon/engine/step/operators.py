"""The time of each operator of a step alone, for `llmd profile` (Vidur section 4.3)."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from daemon.engine.batch.flat_batch import FlatBatch, flatten
from daemon.engine.step.step import Engine
from daemon.protocol.worker import OperatorTimes, TimeOperators

Clock = Callable[[], float]
"""Seconds: of a clock, or of processor time."""

SAMPLER, COPIES = "sampler", "block copies"


def time_operators(
    engine: Engine, order: TimeOperators, clock: Clock = time.perf_counter
) -> OperatorTimes:
    """Compute each operator of the order's plan alone, and its fastest time.

    The plan's tables are applied as a step's are; its keys and values are written, and its tokens
    are lost. A first run prepares an operator and does not count.
    """
    batch = order.plan.batch
    engine.slots.change_tables(batch)
    flat = flatten(batch, order.plan.inputs, engine.slots.block_table, *engine.cache.shape)
    found = tuple(
        (name, min(_times_s(run, clock, engine.cache.blocks.is_cuda, order.repeats)))
        for name, run in _operators(engine, order, flat)
    )
    return OperatorTimes(batch.step, found)


def _operators(
    engine: Engine, order: TimeOperators, flat: FlatBatch
) -> Iterator[tuple[str, Callable[[], object]]]:
    batch = order.plan.batch
    if len(batch.copy_sources):
        yield COPIES, partial(engine.cache.copy, batch.copy_sources, batch.copy_targets)
    alone = engine.model.alone(flat, engine.slots, engine.cache, engine.backend)
    yield from alone.items()
    if alone and len(flat.sampled_slots):
        logits = engine.model.logits(flat, engine.slots, engine.cache, engine.backend)
        yield SAMPLER, lambda: _sample(engine, flat, logits)


def _sample(engine: Engine, flat: FlatBatch, logits: torch.Tensor) -> None:
    engine.sampler.sample(logits, flat.sampled_slots, flat.sampled_positions).read()


def _times_s(run: Callable[[], object], clock: Clock, is_cuda: bool, repeats: int) -> list[float]:
    run()
    found = []
    for _ in range(repeats):
        _settle(is_cuda)
        began_s = clock()
        run()
        _settle(is_cuda)
        found.append(clock() - began_s)
    return found


def _settle(is_cuda: bool) -> None:
    """Wait for what a GPU still computes."""
    if is_cuda:
        torch.cuda.synchronize()
