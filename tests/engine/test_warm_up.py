"""Warming up touches every way to draw, and leaves an engine as it was."""

from pathlib import Path
from typing import cast

import torch

from daemon.engine.protocol import Plan, Reply
from daemon.engine.step import Engine
from daemon.engine.warm_up import touch_kinds
from tests.engine.test_exactness import driver, finish, load, prompt
from tests.engine.tiny import greedy, reference, save


class Noted:
    """An engine's steps, with their answers kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.replies: list[Reply] = []

    def run(self, plan: Plan) -> Reply:
        self.replies.append(self._engine.run(plan))
        return self.replies[-1]


def test_every_kind_of_step_is_touched_and_nothing_stays(tmp_path: Path) -> None:
    engine, plans = load(save("llama", tmp_path)), driver()
    noted = Noted(engine)
    with torch.inference_mode():
        touch_kinds(cast(Engine, noted))
    assert not any(reply.errors for reply in noted.replies)
    asked_for = [reply.logprobs is not None for reply in noted.replies]
    assert asked_for == [True, True, *[False] * 5]
    asked = prompt(21, 3)
    running = plans.add(0, asked)
    finish(engine, plans, [running], 12)
    assert running.outputs == greedy(reference("llama"), asked, 12)
