"""Programs of a CPU's steps: rows of several tokens get what they get without a program."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from daemon.engine.batch.flat_batch import FlatBatch, flatten
from daemon.engine.cpu import program
from daemon.engine.cpu.step_buffers import MAX_TOKENS
from daemon.engine.layers.modules import Modules
from daemon.engine.model.model import CausalModel
from daemon.engine.step.operators import time_operators
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.lab.profiler.synthetic import PlanMaker, StepRow
from daemon.protocol.worker import Load, Plan, TimeOperators
from daemon.wire.columns import int32
from tests.engine.driver import Driver, Running
from tests.engine.tiny import CONTEXT_LEN, VOCAB_SIZE, save

BLOCK_SIZE, NUM_BLOCKS, SLOTS = 8, 96, 12
BEHIND = 9
"""Tokens of each sequence that are computed in a step before."""
CLOSE = 2e-4


def loaded(folder: Path, kv_dtype: str = "") -> Engine:
    message = Load(
        model=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_slots=SLOTS,
        max_len=CONTEXT_LEN,
        max_batch_tokens=CONTEXT_LEN,
        kv_dtype=kv_dtype,
    )
    with torch.inference_mode():
        return start(message, lambda stage, done: None)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def llama(folder: Path) -> Engine:
    """One whose programs take as many tokens as those of packed weights do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "MAX_PLAIN", MAX_TOKENS)
        return loaded(folder)


def steps(engine: Engine, counts: Sequence[int], compiled: bool) -> list[torch.Tensor]:
    """Logits of two steps: BEHIND tokens of each sequence, and so many more.

    The sequences are the same in every call, their slots and blocks are not.
    """
    drawn = random.Random(3)
    prompts = [drawn.choices(range(2, VOCAB_SIZE), k=BEHIND + count) for count in counts]
    plans = Driver(BLOCK_SIZE, random.sample(range(NUM_BLOCKS), NUM_BLOCKS))
    slots = random.sample(range(SLOTS), len(counts))
    rows = [plans.add(slot, prompt) for slot, prompt in zip(slots, prompts, strict=True)]
    found = [step(engine, plans, [(row, BEHIND) for row in rows], compiled)]
    found.append(step(engine, plans, list(zip(rows, counts, strict=True)), compiled))
    for row in rows:
        plans.leave(row)
    engine.run(plans.plan([]))
    return found


def step(
    engine: Engine, plans: Driver, work: list[tuple[Running, int]], compiled: bool
) -> torch.Tensor:
    """The logits [R, vocab] of a step, and its keys and values written."""
    plan = plans.plan(work)
    engine._change_seats(plan)
    engine.slots.change_tables(plan.batch)
    flat = flatten(plan.batch, plan.inputs, engine.slots.block_table, BLOCK_SIZE)
    assert engine.model.compiles(flat)
    model = engine.model if compiled else engine.model.uncompiled
    logits = model.logits(flat, engine.slots, engine.cache, engine.backend).clone()
    for row, count in work:
        row.num_computed += count
    return logits


@pytest.mark.parametrize("counts", [(7,), (1, 1, 1), (5, 1, 1, 9), (40, 2), (70,)])
def test_rows_of_several_tokens_are_so_many_of_one(llama: Engine, counts: Sequence[int]) -> None:
    with torch.inference_mode():
        found, expected = (steps(llama, counts, compiled) for compiled in (True, False))
    assert [one.shape for one in found] == [(0, VOCAB_SIZE), (len(counts), VOCAB_SIZE)]
    torch.testing.assert_close(found[1], expected[1], rtol=CLOSE, atol=CLOSE)


def test_a_chunk_of_one_token_alone_samples_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "reads_in_turn", lambda _weights, _team: True)
    engine, found = loaded(folder), list[torch.Tensor]()
    with torch.inference_mode():
        for compiled in (True, False):
            plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
            row = plans.add(0, [5, 7, 3])
            found += [step(engine, plans, [(row, 1)], compiled) for _ in range(3)]
            plans.leave(row)
            engine.run(plans.plan([]))
    assert [len(logits) for logits in found] == [0, 0, 1] * 2
    torch.testing.assert_close(found[2], found[5], rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize(("name", "kv_dtype"), [("qwen3", ""), ("llama", "int8")])
def test_norms_of_queries_and_8_bit_caches(name: str, kv_dtype: str, tmp_path: Path) -> None:
    engine = loaded(save(name, tmp_path / name), kv_dtype)
    with torch.inference_mode():
        found, expected = (steps(engine, (12, 1, 5), compiled) for compiled in (True, False))
    torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=1e-3)


def test_programs_that_gave_way_are_written_again(
    llama: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MOST_PROGRAMS", 2)
    shapes = [(7,), (3, 1), (2, 2, 2), (7,), (3, 1)]
    with torch.inference_mode():
        found = [steps(llama, counts, True)[1] for counts in shapes]
    assert torch.equal(found[0], found[3]) and torch.equal(found[1], found[4])


def test_what_torch_does_faster_is_not_taken(llama: Engine, folder: Path) -> None:
    def flat(counts: Sequence[int], start: int) -> FlatBatch:
        plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
        rows = [plans.add(slot, [2] * (start + count)) for slot, count in enumerate(counts)]
        for row in rows:
            row.num_computed = start
        plan = plans.plan(list(zip(rows, counts, strict=True)))
        return flatten(plan.batch, plan.inputs, llama.slots.block_table, BLOCK_SIZE)

    takes = llama.model.compiles
    assert takes(flat((MAX_TOKENS,), 0))
    assert not takes(flat((MAX_TOKENS + 1,), 0)), "too many tokens"
    assert not takes(flat((MAX_TOKENS,), 1)), "too many pairs"
    assert takes(flat((1,) * 4, 180)), "rows of one token attend as they always do"
    takes = loaded(folder).model.compiles
    assert takes(flat((program.MAX_PLAIN,), 0))
    assert not takes(flat((program.MAX_PLAIN + 1,), 0)), "too many for plain weights"


def flattened(engine: Engine, plan: Plan) -> FlatBatch:
    return flatten(plan.batch, plan.inputs, engine.slots.block_table, BLOCK_SIZE)


def test_the_operators_of_a_program_are_all_of_its_calls(llama: Engine) -> None:
    programs = llama.model._programs
    assert isinstance(programs, program.StepPrograms)
    plan = PlanMaker(BLOCK_SIZE, SLOTS).step(1, (StepRow(5, 3), StepRow(1, 7, sampled=False)))
    with torch.inference_mode():
        written = programs._prepared(flattened(llama, plan))
        parts = written.alone()
    whole = sorted(map(tuple, written.table.tolist()))
    assert sorted(row for part in parts.values() for row in map(tuple, part.tolist())) == whole
    num_layers = len(programs._decoder.layers)
    assert len(parts["norm"]) == 2 * num_layers + 1 and len(parts["rope"]) == num_layers


@pytest.mark.parametrize("compiled", [True, False])
def test_each_operator_of_a_step_is_timed_alone(llama: Engine, compiled: bool) -> None:
    engine = llama if compiled else replace(llama, model=llama.model.uncompiled)
    maker = PlanMaker(BLOCK_SIZE, SLOTS)
    rows = (StepRow(5, 3), StepRow(1, 7), StepRow(1, 9, sampled=False))
    copies = maker.copies(3, int32([40, 41]), int32([50, 51]))
    with torch.inference_mode():
        engine.cache.raw[40:42] = 7
        engine.run(maker.opening())
        engine.run(maker.tables(1, rows))
        times = time_operators(engine, TimeOperators(maker.step(2, rows), 2))
        copied = time_operators(engine, TimeOperators(copies, 1))
    assert times.step == 2 and all(time_s > 0.0 for _, time_s in times.times_s)
    names = {"embedding", "norm", "query_key_value", "rope", "attention", "output"}
    names |= {"gate_up", "activation", "down", "head", "sampler"}
    assert {name for name, _ in times.times_s} == names
    assert [name for name, _ in copied.times_s] == ["block copies"]
    assert bool((engine.cache.raw[50:52] == 7).all())


def test_a_model_of_transformers_own_modules_is_one_whole(llama: Engine) -> None:
    forward = Modules(torch.nn.Identity())
    plan = PlanMaker(BLOCK_SIZE, SLOTS).step(1, (StepRow(5, 3),))
    parts = llama.slots, llama.cache, llama.backend
    assert not CausalModel(forward).alone(flattened(llama, plan), *parts)
