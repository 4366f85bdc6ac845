"""Steps that begin before the one before them is read draw what steps one by one draw."""

from collections import deque
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from daemon.engine.step.step import Begun, Engine
from daemon.engine.worker.answers import AnswersBeside
from daemon.protocol.worker import Reply
from daemon.state.request import SamplingParams
from tests.engine.driver import Driver, Running
from tests.engine.model.test_exactness import driver, load, prompt
from tests.engine.tiny import save
from tests.hangs import HANG_S

UNKNOWN = -1
SAMPLING = (
    SamplingParams(temperature=0.0, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=5, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.8, seed=6, ignore_eos=True, repetition_penalty=1.3, top_p=0.9),
    SamplingParams(temperature=0.0, ignore_eos=True, frequency_penalty=0.7, min_tokens=4),
)


class Ahead:
    """Keeps up to `depth` steps begun; tokens that are not read yet are `UNKNOWN` to the plans."""

    def __init__(self, engine: Engine, depth: int) -> None:
        self.engine, self.depth = engine, depth
        self.plans: Driver = driver()
        self.flying: deque[tuple[Begun, list[tuple[Running, int]]]] = deque()
        self.replies: list[Reply] = []

    def step(self, work: list[tuple[Running, int]]) -> None:
        with torch.inference_mode():
            begun = self.engine.begin(self.plans.plan(work))
        self.began(begun)
        drawing = []
        for running, count in work:
            running.num_computed += count
            if running.num_computed == len(running.tokens):
                drawing.append((running, len(running.tokens)))
                running.tokens.append(UNKNOWN)
        self.flying.append((begun, drawing))
        while len(self.flying) >= self.depth:
            self.read()

    def read(self) -> None:
        begun, drawing = self.flying.popleft()
        reply = self.answer(begun)
        for (running, index), token in zip(drawing, reply.tokens.tolist(), strict=True):
            assert running.tokens[index] == UNKNOWN
            running.tokens[index] = token
        self.replies.append(reply)

    def began(self, begun: Begun) -> None:
        pass

    def answer(self, begun: Begun) -> Reply:
        return begun.finish()


class Beside(Ahead):
    """Steps are finished by a thread of its own, as a GPU's worker does it."""

    def __init__(self, engine: Engine, depth: int) -> None:
        super().__init__(engine, depth)
        self.sent: SimpleQueue[Reply | Exception] = SimpleQueue()
        self.answers = AnswersBeside(self.sent.put, self.sent.put)

    def began(self, begun: Begun) -> None:
        self.answers.take(begun)

    def answer(self, begun: Begun) -> Reply:
        reply = self.sent.get(timeout=HANG_S)
        assert isinstance(reply, Reply), reply
        return reply


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load(save("llama", tmp_path_factory.mktemp("llama")))


def lives(ahead: Ahead) -> list[list[int]]:
    """Sequences that come one by one, a prompt in chunks between, and one that leaves early."""
    sequences: list[Running] = []
    for slot, sampling in enumerate(SAMPLING):
        sequences.append(ahead.plans.add(slot, prompt(5 + 9 * slot, slot), sampling))
        ahead.step([(one, len(one.tokens) - one.num_computed) for one in sequences])
        ahead.step([(one, 1) for one in sequences])
    chunked = ahead.plans.add(5, prompt(30, 9))
    for _ in range(3):
        ahead.step([(chunked, 10), *((one, 1) for one in sequences)])
    ahead.plans.leave(sequences[1])
    rest = [chunked, sequences[0], *sequences[2:]]
    for _ in range(6):
        ahead.step([(one, 1) for one in rest])
    while ahead.flying:
        ahead.read()
    return [one.outputs for one in (*sequences, chunked)]


@pytest.mark.parametrize("kind", [Ahead, Beside])
@pytest.mark.parametrize("depth", [2, 3])
def test_the_same_tokens_and_scores(engine: Engine, kind: type[Ahead], depth: int) -> None:
    one_by_one, ahead = Ahead(engine, 1), kind(engine, depth)
    assert lives(ahead) == lives(one_by_one)
    assert not any(UNKNOWN in one for one in lives(Ahead(engine, depth)))
    for mine, theirs in zip(ahead.replies, one_by_one.replies, strict=True):
        assert (mine.logprobs is None) == (theirs.logprobs is None)
        if mine.logprobs is not None and theirs.logprobs is not None:
            np.testing.assert_allclose(mine.logprobs.chosen, theirs.logprobs.chosen, atol=1e-6)


def test_a_step_is_answered_once_whoever_asks(engine: Engine) -> None:
    ahead = Ahead(engine, 9)
    sequence = ahead.plans.add(0, prompt(6, 1))
    ahead.step([(sequence, 6)])
    begun: Any = ahead.flying[0][0]
    assert begun.finish() is begun.finish()


def test_times_add_up(engine: Engine) -> None:
    """What steps took and what they waited is all the time from the first plan to the last."""
    ahead = Ahead(engine, 2)
    sequence = ahead.plans.add(0, prompt(6, 1))
    ahead.step([(sequence, 6)])
    for _ in range(8):
        ahead.step([(sequence, 1)])
    while ahead.flying:
        ahead.read()
    assert all(reply.elapsed_s >= 0 and reply.idle_s >= 0 for reply in ahead.replies)
