"""Layers with windows hold the pages of their last tokens, and answers are transformers' own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from daemon.core.values.events import MigrationOrdered
from daemon.engine.model.backend import choose_backend, torch_backend
from tests.engine.kv.tiny_cores import BLOCK_SIZE, Served, engine_of
from tests.engine.tiny import FUSED, VOCAB_SIZE, greedy, reference, save
from tests.soak import tries

NUM_GROUPS = {
    "gemma3": 2,
    "mistral_window": 1,
    "gemma4": 5,
    "gemma4_shared": 2,
    "gemma4_dense": 3,
    "llama4": 2,
    "gpt_oss": 2,
}
NAMES = tuple(NUM_GROUPS)
NUM_BLOCKS = 60


def prompts(number: int, least: int, most: int) -> list[list[int]]:
    chooser = np.random.default_rng(number)
    return [
        chooser.integers(2, VOCAB_SIZE, int(length)).tolist()
        for length in chooser.integers(least, most, number)
    ]


@pytest.fixture(scope="module", params=NAMES[: tries(6, 7)])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make(name: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Served]:
    """One daemon or several instances, with pools as large as of so many blocks of all layers."""
    folder = save(name, tmp_path_factory.mktemp(name))
    backend = choose_backend(torch.device("cpu"), torch.float32)

    def served(num_blocks: int = NUM_BLOCKS, num_instances: int = 1) -> Served:
        engines = [engine_of(folder, num_blocks, 400, backend) for _ in range(num_instances)]
        compiled = name in FUSED and name != "gpt_oss"  # whose experts are, where quantised
        assert all(it.model.fused == (name in FUSED) for it in engines)
        assert all(it.model.compiled == compiled for it in engines)
        return Served(engines)

    return served


def check(served: Served, name: str, asked: list[tuple[int, list[int], int]]) -> None:
    """Every answer is what transformers generates."""
    for sequence, prompt, num_tokens in asked:
        answer = served.answer(sequence)
        assert answer == greedy(reference(name), prompt, num_tokens, answer)


def test_many_more_sequences_run_than_would_with_all_tokens_held(
    name: str, make: Callable[..., Served]
) -> None:
    served = make()
    kv = served.core.instances[0].scheduler.kv
    assert kv.has_windows and kv.num_groups == NUM_GROUPS[name]
    held_as_all = -(-120 // BLOCK_SIZE) * kv.num_groups
    assert kv.blocks_for(120) < 0.7 * held_as_all
    (prompt,) = prompts(1, 90, 91)
    (sequence,) = served.ask(prompt, 40)
    most = 0
    while served.core.sequences:
        assert served.step()
        if slot_of(served, sequence) >= 0:
            most = max(most, kv.table.blocks(slot_of(served, sequence)).size)
    assert most <= kv.blocks_to_begin(130)
    assert kv.pool.check().held == 0
    check(served, name, [(sequence, prompt, 40)])


def slot_of(served: Served, sequence: int) -> int:
    member = served.core.sequences.get(sequence)
    return -1 if member is None else member.slot


def test_answers_under_preemption_and_swapping(name: str, make: Callable[..., Served]) -> None:
    served = make(34)
    asked, num_tokens = (
        [],
        {"gemma4": 100, "gemma4_dense": 100, "llama4": 60}.get(name, 30),
    )  # of some few pages grow
    for prompt in prompts(7, 20, 70):
        (sequence,) = served.ask(prompt, num_tokens)
        asked.append((sequence, prompt, num_tokens))
    served.settle()
    if name != "mistral_window":  # behind a window growing takes nothing, so none gives way
        assert served.core.counters.preemptions, "nothing was preempted"
        assert served.core.instances[0].scheduler.swap_stats().num_in
    check(served, name, asked)


def test_a_prefix_is_found_after_its_window_has_passed(
    name: str, make: Callable[..., Served]
) -> None:
    served = make(400)
    (common,) = prompts(1, 60, 61)
    asked = []
    for tail in prompts(3, 5, 20):
        (sequence,) = served.ask(common + tail, 20)
        served.settle()
        asked.append((sequence, common + tail, 20))
    assert served.core.counters.cached_tokens >= 2 * 56
    check(served, name, asked)


def test_several_answers_of_a_prompt(name: str, make: Callable[..., Served]) -> None:
    served = make()
    (prompt,) = prompts(1, 50, 51)
    asked = [(sequence, prompt, 25) for sequence in served.ask(prompt, 25, n=3)]
    served.settle()
    check(served, name, asked)


def test_an_answer_goes_on_elsewhere(name: str, make: Callable[..., Served]) -> None:
    served = make(NUM_BLOCKS, 2)
    (prompt,) = prompts(1, 60, 61)
    (sequence,) = served.ask(prompt, 40)
    for _ in range(20):
        served.step()
    there = 1 - served.core.sequences[sequence].instance
    served.handle(MigrationOrdered(served.now, sequence, there))
    served.settle()
    assert served.num_sent == (2 if name == "mistral_window" else 4)  # full layers go ahead
    assert served.core.counters.recomputed_tokens == 0
    check(served, name, [(sequence, prompt, 40)])


def test_torch_computes_groups_of_layers_too(name: str, tmp_path: Path) -> None:
    served = Served([engine_of(save(name, tmp_path), NUM_BLOCKS, 0, torch_backend())])
    asked = [(*served.ask(prompt, 20), prompt, 20) for prompt in prompts(3, 10, 60)]
    served.settle()
    check(served, name, asked)


def test_layers_of_unlike_heads_that_all_see_all(tmp_path: Path) -> None:
    engine = engine_of(save("gemma4_wide", tmp_path), 40, 400, torch_backend())
    assert engine.cache.windows == (0, 0, 0)
    served = Served([engine])
    asked = [(*served.ask(prompt, 20), prompt, 20) for prompt in prompts(4, 20, 70)]
    served.settle()
    check(served, "gemma4_wide", asked)
    assert served.core.instances[0].scheduler.kv.pool.check().held == 0
