"""Warming up computes prompts long and short and decode steps, and leaves an engine as it was."""

from pathlib import Path
from typing import cast

import torch

from daemon.engine.kv_cache import PagedKV
from daemon.engine.slots import Slots
from daemon.engine.step import Engine
from daemon.engine.warm_up import warm_up
from daemon.protocol.worker import Load, Plan, Reply
from tests.engine.test_exactness import BLOCK_SIZE, driver, finish, load, prompt
from tests.engine.tiny import CONTEXT_LEN, greedy, reference, save


class Noted:
    """An engine whose plans and answers are kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.cache: PagedKV = engine.cache
        self.slots: Slots = engine.slots
        self.counts: list[int] = []
        self.replies: list[Reply] = []

    def run(self, plan: Plan) -> Reply:
        self.counts.append(plan.batch.num_tokens)
        self.replies.append(self._engine.run(plan))
        return self.replies[-1]


def test_every_kind_of_step_is_touched_and_nothing_stays(tmp_path: Path) -> None:
    folder = save("llama", tmp_path)
    engine, plans = load(folder), driver()
    message = Load(str(folder), "cpu", "float32", BLOCK_SIZE, 96, 8, CONTEXT_LEN, 512)
    noted = Noted(engine)
    with torch.inference_mode():
        step_s, token_s = warm_up(cast(Engine, noted), message)
    assert step_s > 0 and token_s >= 0
    assert not any(reply.errors for reply in noted.replies)
    # Both of a GPU's prefill kernels: for tiles of many rows, and of few.
    assert {1, 4, 64} <= set(noted.counts)
    asked = prompt(21, 3)
    running = plans.add(0, asked)
    finish(engine, plans, [running], 12)
    assert running.outputs == greedy(reference("llama"), asked, 12)
