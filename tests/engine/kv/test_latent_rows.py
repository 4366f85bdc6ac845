"""A model with latent rows through all that happens to sequences: answers are transformers' own."""

from collections.abc import Callable

import pytest
import torch

from daemon.core.values.events import MigrationOrdered
from daemon.engine.model.backend import choose_backend
from tests.engine.kv.test_kinds_of_layers import prompts
from tests.engine.kv.tiny_cores import BLOCK_SIZE, Served, engine_of
from tests.engine.tiny import greedy, reference, save

NAME = "deepseek_v3"
Asked = list[tuple[int, list[int], int]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Served]:
    folder = save(NAME, tmp_path_factory.mktemp(NAME))
    backend = choose_backend(torch.device("cpu"), torch.float32)

    def served(num_blocks: int = 60, num_instances: int = 1) -> Served:
        engines = [engine_of(folder, num_blocks, 200, backend) for _ in range(num_instances)]
        rows = 3 * BLOCK_SIZE  # of three layers, each of 24 + 8 numbers of 4 bytes
        assert all(it.cache.block_bytes == rows * (24 + 8) * 4 for it in engines)
        return Served(engines)

    return served


def check(served: Served, asked: Asked) -> None:
    for sequence, prompt, num_tokens in asked:
        answer = served.answer(sequence)
        assert answer == greedy(reference(NAME), prompt, num_tokens, answer)


def test_answers_under_preemption_and_swapping(make: Callable[..., Served]) -> None:
    served, asked = make(34), Asked()
    for prompt in prompts(7, 20, 70):
        (sequence,) = served.ask(prompt, 30)
        asked.append((sequence, prompt, 30))
    served.settle()
    assert served.core.counters.preemptions
    assert served.core.instances[0].scheduler.swap_stats().num_in
    check(served, asked)


def test_a_prefix_is_found_and_shared_by_several_answers(make: Callable[..., Served]) -> None:
    served, asked = make(200), Asked()
    (common,) = prompts(1, 60, 61)
    for tail in prompts(2, 5, 20):
        sequences = served.ask(common + tail, 20, n=2)
        served.settle()
        asked += [(sequence, common + tail, 20) for sequence in sequences]
    assert served.core.counters.cached_tokens >= 60 - 4
    check(served, asked)


def test_an_answer_goes_on_elsewhere(make: Callable[..., Served]) -> None:
    served = make(60, 2)
    (prompt,) = prompts(1, 60, 61)
    (sequence,) = served.ask(prompt, 40)
    for _ in range(20):
        served.step()
    there = 1 - served.core.sequences[sequence].instance
    served.handle(MigrationOrdered(served.now, sequence, there))
    served.settle()
    assert served.num_sent and served.core.counters.recomputed_tokens == 0
    check(served, [(sequence, prompt, 40)])
