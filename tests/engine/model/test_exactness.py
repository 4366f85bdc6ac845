"""The engine's greedy tokens equal transformers.generate's, for every tested architecture."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.protocol.worker import Load
from tests.engine.driver import Driver, Running
from tests.engine.tiny import CONFIGS, CONTEXT_LEN, FUSED, VOCAB_SIZE, greedy, reference, save

BLOCK_SIZE = 8
NUM_BLOCKS = 96

Start = Callable[[str], Engine]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Start:
    engines: dict[str, Engine] = {}

    def start_engine(name: str) -> Engine:
        if name not in engines:
            folder = save(name, tmp_path_factory.mktemp(name))
            engines[name] = load(folder)
        return engines[name]

    return start_engine


def load(folder: Path, dtype: str = "float32") -> Engine:
    message = Load(
        model=str(folder),
        device="cpu",
        dtype=dtype,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_slots=8,
        max_len=CONTEXT_LEN,
        max_batch_tokens=64,
    )
    with torch.inference_mode():
        engine, times = start(message, lambda stage, done: None)
    assert times.step_s > 0
    assert times.token_s >= 0 and times.row_s >= 0
    return engine


def driver(seed: int = 0) -> Driver:
    blocks = list(range(NUM_BLOCKS))
    random.Random(seed).shuffle(blocks)
    return Driver(BLOCK_SIZE, blocks)


def prompt(length: int, seed: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(2, VOCAB_SIZE) for _ in range(length)]


def run(engine: Engine, plans: Driver, work: list[tuple[Running, int]]) -> None:
    plans.fit(engine)
    with torch.inference_mode():
        plans.take(work, engine.run(plans.plan(work)))


def finish(engine: Engine, plans: Driver, sequences: list[Running], num_outputs: int) -> None:
    """Prefill what is left at once, then decode together until each has its outputs."""
    while going := [s for s in sequences if len(s.outputs) < num_outputs]:
        run(engine, plans, [(s, len(s.tokens) - s.num_computed) for s in going])


@pytest.mark.parametrize("name", CONFIGS)
def test_sequences_of_unlike_lengths_together(name: str, started: Start) -> None:
    engine, plans = started(name), driver()
    assert engine.model.fused == (name in FUSED)
    prompts = [prompt(length, length) for length in (1, 7, 8, 9, 33)]
    plans.fit(engine)
    sequences = [plans.add(slot, tokens) for slot, tokens in enumerate(prompts)]
    finish(engine, plans, sequences, 20)
    for sequence, tokens in zip(sequences, prompts, strict=True):
        assert sequence.outputs == greedy(reference(name), tokens, 20, sequence.outputs)


@pytest.mark.parametrize("chunk", [1, 5, 7, 8, 9, 16])
def test_chunks_around_a_block_s_end(chunk: int, started: Start) -> None:
    engine, plans, tokens = started("llama"), driver(), prompt(41, 3)
    decoding = plans.add(0, prompt(12, 4))
    run(engine, plans, [(decoding, 12)])
    chunked = plans.add(1, tokens)
    while chunked.num_computed < len(tokens):
        count = min(chunk, len(tokens) - chunked.num_computed)
        run(engine, plans, [(decoding, 1), (chunked, count)])
    finish(engine, plans, [decoding, chunked], 12)
    assert chunked.outputs[:12] == greedy(reference("llama"), tokens, 12)
    expected = greedy(reference("llama"), prompt(12, 4), len(decoding.outputs))
    assert decoding.outputs == expected


def test_a_shared_prefix_is_not_computed_again(started: Start) -> None:
    engine, plans, tokens = started("qwen3"), driver(), prompt(40, 5)
    first = plans.add(0, tokens)
    run(engine, plans, [(first, 40)])
    other = tokens[:24] + prompt(10, 6)
    second = plans.add(1, other, shared=first.blocks[:3])
    assert second.num_computed == 24
    finish(engine, plans, [first, second], 12)
    assert first.outputs == greedy(reference("qwen3"), tokens, 12)
    assert second.outputs == greedy(reference("qwen3"), other, 12)


def test_a_copied_block_parts_two_sequences(started: Start) -> None:
    engine, plans, tokens = started("llama"), driver(), prompt(19, 7)
    first = plans.add(0, tokens)
    run(engine, plans, [(first, 19)])
    # The third block is part full: the twin continues on a copy, with another token.
    own = plans.free_blocks.pop()
    twin_tokens = [*tokens, (first.outputs[0] + 1) % VOCAB_SIZE]
    twin = plans.add(1, twin_tokens, shared=[*first.blocks[:2], own])
    plans.copies.append((first.blocks[2], own))
    twin.num_computed = 19
    finish(engine, plans, [first, twin], 10)
    assert first.outputs == greedy(reference("llama"), tokens, 10)
    assert twin.outputs == greedy(reference("llama"), twin_tokens, 10)


def test_slots_and_blocks_are_reused(started: Start) -> None:
    engine, plans = started("opt"), driver()
    stays = plans.add(0, prompt(9, 20))
    for generation in range(4):
        tokens = prompt(10 + 7 * generation, 30 + generation)
        comes = plans.add(1, tokens)
        finish(engine, plans, [comes], 5)
        run(engine, plans, [(stays, len(stays.tokens) - stays.num_computed)])
        assert comes.outputs == greedy(reference("opt"), tokens, 5)
        plans.leave(comes)
        plans.free_blocks += comes.blocks
    assert stays.outputs == greedy(reference("opt"), prompt(9, 20), 4)


def test_a_resumed_sequence_goes_on_as_before(started: Start) -> None:
    engine, plans, tokens = started("gpt_neox"), driver(), prompt(14, 8)
    before = plans.add(0, tokens)
    finish(engine, plans, [before], 6)
    plans.leave(before)
    resumed = plans.add(3, before.tokens)
    finish(engine, plans, [resumed], 6)
    assert before.outputs + resumed.outputs == greedy(reference("gpt_neox"), tokens, 12)


@pytest.mark.parametrize("name", ["llama", "qwen3", "opt"])
def test_any_schedule_gives_the_same_tokens(name: str, started: Start) -> None:
    engine, plans, chooser = started(name), driver(1), random.Random(11)
    waiting = [prompt(chooser.randrange(1, 50), seed) for seed in range(14)]
    expected = {tuple(tokens): greedy(reference(name), tokens, 9) for tokens in waiting}
    running: dict[int, tuple[list[int], Running]] = {}
    slots = list(range(8))
    while waiting or running:
        if waiting and slots and chooser.random() < 0.6:
            tokens = waiting.pop()
            slot = slots.pop(chooser.randrange(len(slots)))
            running[slot] = (tokens, plans.add(slot, tokens))
        work = []
        for _tokens, sequence in running.values():
            left = len(sequence.tokens) - sequence.num_computed
            if chooser.random() < 0.7:
                work.append((sequence, min(left, chooser.randrange(1, 20))))
        if work:
            run(engine, plans, work)
        for slot, (tokens, sequence) in list(running.items()):
            outputs = sequence.tokens[len(tokens) :]
            if len(outputs) >= 9:
                assert outputs[:9] == expected[tuple(tokens)]
            elif chooser.random() > 0.05:
                continue
            # Finished, or preempted: then it comes back at once, elsewhere, and computes anew.
            plans.leave(sequence)
            plans.free_blocks[:0] = sequence.blocks
            slots.append(slot)
            del running[slot]
            if len(outputs) < 9:
                back = slots.pop(0)
                running[back] = (tokens, plans.add(back, sequence.tokens))


def test_bfloat16_is_computed_too(started: Start, tmp_path: Path) -> None:
    tokens = prompt(20, 2)
    engine, plans = load(save("llama", tmp_path / "llama"), "bfloat16"), driver()
    assert engine.model.fused and engine.backend.name == "torch"
    sequence = plans.add(0, tokens)
    finish(engine, plans, [sequence], 3)
    assert sequence.outputs[0] == greedy(reference("llama"), tokens, 1)[0]
