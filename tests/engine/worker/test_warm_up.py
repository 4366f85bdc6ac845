"""Warming up computes prompts long and short and decode steps, and leaves an engine as it was."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
import torch

from daemon.engine.batch.slots import Slots
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.ranks import Ranks
from daemon.engine.model.backend import Backend
from daemon.engine.model.model import CausalModel
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.engine.worker.warm_up import measure_size, touch, warm_up
from daemon.protocol.worker import Load, Plan, Reply
from daemon.wire.columns import int32
from tests.engine.model.test_exactness import BLOCK_SIZE, driver, finish, load, prompt
from tests.engine.process import cpu_load
from tests.engine.tiny import CONTEXT_LEN, greedy, reference, save


class Noted:
    """An engine whose plans and answers are kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.cache: PagedKV = engine.cache
        self.slots: Slots = engine.slots
        self.backend: Backend = engine.backend
        self.model: CausalModel = engine.model
        self.counts: list[int] = []
        self.replies: list[Reply] = []

    def run(self, plan: Plan) -> Reply:
        self.counts.append(plan.batch.num_tokens)
        self.replies.append(self._engine.run(plan))
        return self.replies[-1]


class BesideGpu:
    """The ranks of an instance whose other one is on a GPU."""

    world_size = 2

    def gather(
        self, rows: torch.Tensor, _widths: Sequence[int], *, reads: bool = True
    ) -> torch.Tensor:
        return torch.cat((rows, torch.ones_like(rows)), 1)


def test_a_cpu_beside_a_gpu_takes_the_steps_that_the_gpu_takes(tmp_path: Path) -> None:
    """No drafts, which a GPU takes none of, and prompts as long as they may be."""
    folder = save("llama", tmp_path)
    engine = load(folder)
    message = Load(str(folder), "cpu", "float32", BLOCK_SIZE, 96, 8, CONTEXT_LEN, 96)
    noted = Noted(engine)
    noted.backend = replace(engine.backend, ranks=cast(Ranks, BesideGpu()))
    with torch.inference_mode():
        times = warm_up(cast(Engine, noted), message)
    assert times.row_s == 0.0 and 8 not in noted.counts and noted.counts[0] == 96


def test_every_kind_of_step_is_touched_and_nothing_stays(tmp_path: Path) -> None:
    folder = save("llama", tmp_path)
    engine, plans = load(folder), driver()
    message = Load(str(folder), "cpu", "float32", BLOCK_SIZE, 96, 8, CONTEXT_LEN, 512)
    noted = Noted(engine)
    with torch.inference_mode():
        times = warm_up(cast(Engine, noted), message)
    assert times.step_s > 0 and times.token_s >= 0 and times.row_s >= 0
    assert not any(reply.errors for reply in noted.replies)
    # Both of a GPU's prefill kernels: for tiles of many rows, and of few.
    assert {1, 4, 64} <= set(noted.counts)
    assert 8 in noted.counts, "a step with drafts"
    asked = prompt(21, 3)
    running = plans.add(0, asked)
    finish(engine, plans, [running], 12)
    assert running.outputs == greedy(reference("llama"), asked, 12)


def test_a_later_start_takes_the_times_of_the_first(tmp_path: Path) -> None:
    message = cpu_load(
        str(save("llama", tmp_path)), cache=str(tmp_path / "cache"), num_threads=1, finds_size=True
    )
    with torch.inference_mode():
        _, first = start(message, lambda _stage, _done: None)
        engine, second = start(message, lambda _stage, _done: None)
        _, other = start(msgspec.structs.replace(message, num_threads=2), lambda *_: None)
        noted = Noted(engine)
        touch(cast(Engine, noted), message)
    assert first == second != other and first.step_s > 0 and first.forward_tokens > 0
    assert noted.counts == [4, 1], "a few tokens have all weights computed with"
    assert not any(reply.errors for reply in noted.replies)


@pytest.mark.parametrize("text", [b"", b'{"key": "", "result": {"step_s": 1, "token_s": 1}}'])
def test_times_that_are_corrupt_are_measured_anew(text: bytes, tmp_path: Path) -> None:
    message = cpu_load(str(save("llama", tmp_path)), cache=str(tmp_path / "cache"))
    with torch.inference_mode():
        start(message, lambda _stage, _done: None)
        (kept,) = (tmp_path / "cache" / "warm-up").iterdir()
        kept.write_bytes(text)
        _, again = start(message, lambda _stage, _done: None)
    assert again.step_s != 1
    assert json.loads(kept.read_bytes())["result"]["step_s"] == again.step_s


def test_the_target_forward_size_is_measured_and_nothing_stays(tmp_path: Path) -> None:
    folder = save("llama", tmp_path)
    engine, plans = load(folder), driver()
    message = Load(str(folder), "cpu", "float32", BLOCK_SIZE, 96, 8, CONTEXT_LEN, CONTEXT_LEN)
    with torch.inference_mode():
        assert 16 <= measure_size(engine, message) <= CONTEXT_LEN
    asked = prompt(21, 3)
    running = plans.add(0, asked)
    finish(engine, plans, [running], 12)
    assert running.outputs == greedy(reference("llama"), asked, 12)


class Timed:
    """An engine whose prompts take a base of so many tokens' time, and each token."""

    def __init__(self, base_tokens: int, token_s: float) -> None:
        self.cache = SimpleNamespace(
            num_blocks=1 << 20, num_groups=1, state_pages=0, row_blocks=lambda cells: cells
        )
        self.slots = SimpleNamespace(block_table=torch.zeros(1, 512))
        self.backend = SimpleNamespace(ranks=None)
        self.longest = 0
        self._base_tokens, self._token_s = base_tokens, token_s

    def run(self, plan: Plan) -> Reply:
        count = plan.batch.num_tokens
        self.longest = max(self.longest, count)
        elapsed_s = self._token_s * (self._base_tokens + count)
        return Reply(plan.batch.step, int32([0]), np.zeros(1, np.uint8), elapsed_s, 0.0)


@pytest.mark.parametrize(
    ("base_tokens", "token_s", "budget", "size", "longest"),
    [
        # 2,048 tokens have 0.990 of the best rate; nine tenths of that come with 164.
        (20, 1e-6, 2048, 164, 2048),
        # The device is never full: the least size that is as good as the budget.
        (500, 1e-6, 256, 220, 256),
        (500, 1e-6, 300, 255, 300),
        # Two seconds are over before it levels off: nothing is known.
        (500, 1e-3, 2048, 0, 32),
    ],
)
def test_prompts_grow_until_a_step_is_full(
    base_tokens: int, token_s: float, budget: int, size: int, longest: int
) -> None:
    timed = Timed(base_tokens, token_s)
    message = Load("", "cuda:0", "float32", 16, 1 << 20, 8, 4096, budget)
    assert measure_size(cast(Engine, timed), message) == size
    assert timed.longest == longest
