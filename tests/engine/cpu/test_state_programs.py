"""Programs of steps whose layers keep states give what is computed without them, and leave the same
states.
"""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from daemon.engine.batch.flat_batch import flatten
from daemon.engine.cpu import program
from daemon.engine.cpu.step_buffers import MAX_TOKENS
from daemon.engine.sampler.rules import DrawRules
from daemon.engine.step.step import Engine
from tests.engine.cpu.test_step_programs import BLOCK_SIZE, CLOSE, NUM_BLOCKS, SLOTS, loaded
from tests.engine.driver import Driver, Running
from tests.engine.tiny import VOCAB_SIZE, save

Work = list[tuple[Running, int]]
LENGTH, TIMES = 30, 4


MODELS = ["qwen3_5", "qwen3_next", "kimi_linear", "granite_hybrid", "nemotron_h", "lfm2", "mamba"]


@pytest.fixture(scope="module", params=[*MODELS, "jamba", "lfm2_moe", "falcon_h1"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """One whose programs take as many tokens as those of packed weights do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "MAX_PLAIN", MAX_TOKENS)
        made = loaded(save(request.param, tmp_path_factory.mktemp(request.param)))
    assert made.model.fused
    return made


def begun(engine: Engine, count: int, length: int = LENGTH) -> tuple[Driver, list[Running]]:
    """Sequences in random slots and pages; their prompts are the same in every call."""
    drawn, blocks = random.Random(3), random.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    plans = Driver(BLOCK_SIZE, blocks)
    plans.fit(engine)
    prompts = [drawn.choices(range(2, VOCAB_SIZE), k=length) for _ in range(count)]
    slots = random.sample(range(SLOTS), count)
    return plans, [plans.add(slot, prompt) for slot, prompt in zip(slots, prompts, strict=True)]


def step(engine: Engine, plans: Driver, work: Work, compiled: bool) -> torch.Tensor:
    """The logits [R, vocab] of a step, and all that it writes."""
    plan = plans.plan(work)
    engine._change_seats(plan)
    engine.slots.change_tables(plan.batch)
    flat = flatten(plan.batch, plan.inputs, engine.slots.block_table, *engine.cache.shape)
    assert engine.model.compiles(flat)
    model = engine.model if compiled else engine.model.uncompiled
    logits = model.logits(flat, engine.slots, engine.cache, engine.backend).clone()
    for row, count in work:
        row.num_computed += count
    return logits


def walked(engine: Engine, steps: Sequence[Sequence[int]], compiled: bool) -> torch.Tensor:
    """The logits behind steps of so many tokens of each sequence, none of some."""
    engine.cache.raw.fill_(0xFF)  # no sequence may read what was there before it
    plans, rows = begun(engine, len(steps[0]))
    for counts in steps:
        work = [(row, count) for row, count in zip(rows, counts, strict=True) if count]
        step(engine, plans, work, compiled)
    last = [(row, LENGTH - row.num_computed) for row in rows]
    found = step(engine, plans, last, compiled)
    for row in rows:
        plans.leave(row)
    engine.run(plans.plan([]))
    return found


@pytest.mark.parametrize(
    "steps",
    [
        [(29,)],
        [(1, 1, 1), (1, 0, 1), (20, 19, 20)],
        [(7, 1, 20, 0, 2), (1, 0, 1, 5, 1), (21, 28, 8, 24, 26)],
    ],
)
def test_any_cut_in_any_company_is_what_it_is_without_programs(
    engine: Engine, steps: Sequence[Sequence[int]]
) -> None:
    with torch.inference_mode():
        found, expected = (walked(engine, steps, compiled) for compiled in (True, False))
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=CLOSE, atol=CLOSE)


def test_several_steps_at_once_are_those_of_single_ones(engine: Engine) -> None:
    with torch.inference_mode():
        plans, rows = begun(engine, 3, 10)
        step(engine, plans, [(row, 9) for row in rows], compiled=True)
        plan = plans.plan([(row, 1) for row in rows])
        engine.slots.change_tables(plan.batch)
        flat = flatten(plan.batch, plan.inputs, engine.slots.block_table, *engine.cache.shape)
        found = engine.model.repeated(flat, DrawRules.greedy(3, TIMES))
        plans, rows = begun(engine, 3, 10)
        step(engine, plans, [(row, 9) for row in rows], compiled=True)
        for _ in range(TIMES):
            best = step(engine, plans, [(row, 1) for row in rows], compiled=True).argmax(-1)
            engine.slots.take(np.array([row.slot for row in rows]), best)
            for row, token in zip(rows, best.tolist(), strict=True):
                row.tokens.append(token)
    assert found is not None
    assert found.tokens.tolist() == [row.outputs for row in rows]
