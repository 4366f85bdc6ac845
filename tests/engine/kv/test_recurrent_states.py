"""Recurrent layers keep their states in pages of the pool, and answers are transformers' own."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from daemon.core.values.events import MigrationOrdered
from daemon.engine.model.backend import choose_backend
from tests.engine.kv.tiny_cores import Served, engine_of
from tests.engine.tiny import VOCAB_SIZE, greedy, reference, save

NAMES = ("qwen3_5", "falcon_h1", "mamba")
FEW_PAGES = {"qwen3_5": 60, "falcon_h1": 40, "mamba": 8}


def prompts(number: int, least: int, most: int) -> list[list[int]]:
    chooser = np.random.default_rng(number)
    return [
        chooser.integers(2, VOCAB_SIZE, int(length)).tolist()
        for length in chooser.integers(least, most, number)
    ]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make(name: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Served]:
    """One daemon or several instances, each with a pool of so many blocks of all layers, all bytes
    of which are a NaN's.
    """
    folder = save(name, tmp_path_factory.mktemp(name))
    backend = choose_backend(torch.device("cpu"), torch.float32)

    def served(num_blocks: int, num_instances: int = 1, swap: str = "reactive") -> Served:
        engines = [engine_of(folder, num_blocks, 200, backend) for _ in range(num_instances)]
        with torch.inference_mode():
            for engine in engines:
                engine.cache.raw.fill_(0xFF)
        return Served(engines, swap)

    return served


def check(served: Served, name: str, asked: list[tuple[int, list[int], int]]) -> None:
    for sequence, prompt, num_tokens in asked:
        answer = served.answer(sequence)
        assert answer == greedy(reference(name), prompt, num_tokens, answer)
    assert served.core.instances[0].scheduler.kv.pool.check().held == 0


@pytest.mark.parametrize("swap", ["recompute", "reactive"])
def test_answers_under_preemption(name: str, make: Callable[..., Served], swap: str) -> None:
    served = make(FEW_PAGES[name], swap=swap)
    asked = [(*served.ask(prompt, 30), prompt, 30) for prompt in prompts(7, 20, 70)]
    served.settle()
    if name != "mamba":  # of states alone, growing takes nothing
        assert served.core.counters.preemptions
    check(served, name, asked)


def test_several_answers_of_a_prompt(name: str, make: Callable[..., Served]) -> None:
    served = make(200)
    (prompt,) = prompts(1, 50, 51)
    asked = [(sequence, prompt, 25) for sequence in served.ask(prompt, 25, n=3)]
    served.settle()
    check(served, name, asked)


def test_an_answer_goes_on_elsewhere(name: str, make: Callable[..., Served]) -> None:
    served = make(200, 2)
    (prompt,) = prompts(1, 60, 61)
    (sequence,) = served.ask(prompt, 40)
    for _ in range(20):
        served.step()
    there = 1 - served.core.sequences[sequence].instance
    served.handle(MigrationOrdered(served.now, sequence, there))
    served.settle()
    check(served, name, [(sequence, prompt, 40)])
