"""Ranks as real worker processes: one instance, driven as the daemon drives it."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import msgspec
import torch

from daemon.memory.layout import row_blocks
from daemon.protocol.worker import (
    Copied,
    Failed,
    Load,
    Plan,
    RankMemory,
    Ready,
    Reply,
    Shutdown,
    StagesWorked,
)
from daemon.wire.columns import encoder
from tests.engine.driver import GREEDY, Driver
from tests.engine.process import WorkerProcess
from tests.engine.tiny import CONTEXT_LEN, greedy

TOLERANCE = 1e-4
"""Between two computations of a logit in float32 that add in another order."""
_ASKING = msgspec.structs.replace(GREEDY, logprobs=8)


class RankGroup:
    """The worker processes of an instance of several ranks."""

    def __init__(self, load: Load, world_size: int, **environment: str) -> None:
        self._stack = ExitStack()
        self.ranks = [
            self._stack.enter_context(WorkerProcess(**environment)) for _ in range(world_size)
        ]
        self.loads = [
            msgspec.structs.replace(load, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]

    def __enter__(self) -> Self:
        memory = os.memfd_create("ranks")
        for worker, load in zip(self.ranks, self.loads, strict=True):
            if len(self.ranks) > 1:
                payload = encoder().encode(RankMemory())
                socket.send_fds(worker.links, [payload], [memory])
            worker.send(load)
        os.close(memory)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ready(self) -> list[Ready | Failed]:
        """The end of each rank's loading."""
        self.readies = [worker.end_of_loading() for worker in self.ranks]
        return self.readies

    def run(self, plan: Plan) -> Reply:
        """The first rank's reply to a plan; copies are not told."""
        self.send(plan)
        return self.reply()

    def send(self, plan: Plan) -> None:
        """Give all ranks a plan."""
        for worker in self.ranks:
            worker.send(plan)

    def reply(self) -> Reply:
        """The first rank's next reply."""
        while isinstance(answer := self.ranks[0].receive(), Copied | StagesWorked):
            pass
        assert isinstance(answer, Reply), answer
        return answer

    def shut_down(self) -> list[int]:
        """Their exit statuses."""
        for worker in self.ranks:
            worker.send(Shutdown())
        return [worker.exit_status() for worker in self.ranks]


class GroupAnswer(NamedTuple):
    """Greedy tokens, and for each the log-probabilities of the likeliest in its place, if asked."""

    tokens: list[int]
    values: list[dict[int, float]]


def answers_of(
    group: RankGroup, texts: Sequence[list[int]], block_size: int, num_blocks: int, num_outputs: int
) -> list[GroupAnswer]:
    """The answers to all texts at once; in the middle the last one's blocks and states go to the
    host pool, and come back elsewhere. All but the first ask for log-probabilities.
    """
    plans, spare_slot = Driver(block_size, list(range(num_blocks))), len(texts)
    ready = next(ready for ready in group.readies if isinstance(ready, Ready))
    plans.fit_ready(ready, spare_slot + 1, row_blocks(CONTEXT_LEN, block_size))
    sequences = [
        plans.add(slot, tokens, _ASKING if slot else GREEDY) for slot, tokens in enumerate(texts)
    ]
    values, moved = [list[dict[int, float]]() for _ in texts], sequences[-1]
    while going := [s for s in sequences if len(s.outputs) < num_outputs]:
        work = [(s, len(s.tokens) - s.num_computed) for s in going]
        if len(moved.outputs) == 3:
            plans.take_out(moved)
            plans.take([], group.run(plans.plan([])))
            plans.bring_back(moved, spare_slot)
        reply = group.run(plans.plan(work))
        plans.take(work, reply)
        for row, found in _values(reply):
            values[going[row].slot].append(found)
    pairs = zip(sequences, values, strict=True)
    return [GroupAnswer(sequence.outputs, found) for sequence, found in pairs]


def texts_of(
    group: RankGroup, texts: Sequence[list[int]], block_size: int, num_blocks: int, num_outputs: int
) -> list[list[int]]:
    """The tokens of these answers."""
    found = answers_of(group, texts, block_size, num_blocks, num_outputs)
    return [answer.tokens for answer in found]


def assert_as_whole(whole: Any, texts: Sequence[list[int]], answers: Sequence[GroupAnswer]) -> None:
    """Answers are those of the whole model in float32, and their logits within `TOLERANCE`."""
    assert_texts_of(whole, texts, answers)
    for tokens, answer in zip(texts, answers, strict=True):
        assert answer is answers[0] or len(answer.values) == len(answer.tokens)
        with torch.inference_mode():
            logits = whole(torch.tensor([tokens + answer.tokens])).logits[0, len(tokens) - 1 : -1]
        for row, found in zip(logits.log_softmax(-1), answer.values, strict=False):
            expected = row[list(found)]
            torch.testing.assert_close(
                torch.tensor(list(found.values())), expected, rtol=0.0, atol=TOLERANCE
            )


def assert_texts_of(whole: Any, texts: Sequence[list[int]], answers: Sequence[GroupAnswer]) -> None:
    """Answers have the greedy tokens of the whole model."""
    for tokens, answer in zip(texts, answers, strict=True):
        assert answer.tokens == greedy(whole, tokens, len(answer.tokens), answer.tokens)


def assert_as_one(answers: Sequence[GroupAnswer], alone: Sequence[GroupAnswer]) -> None:
    """Answers are those of one worker, and their logits within `TOLERANCE`."""
    for answer, other in zip(answers, alone, strict=True):
        assert answer.tokens == other.tokens
        for found, expected in zip(answer.values, other.values, strict=True):
            common = found.keys() & expected.keys()
            assert len(common) > 1
            assert all(abs(found[token] - expected[token]) < TOLERANCE for token in common)


def _values(reply: Reply) -> Iterator[tuple[int, dict[int, float]]]:
    """The rows that asked for log-probabilities, and those of their likeliest tokens."""
    found = reply.logprobs
    if found is not None:
        shape = len(found.rows), -1
        tops = found.top_ids.reshape(shape).tolist(), found.top_values.reshape(shape).tolist()
        for row, *top in zip(found.rows.tolist(), *tops, strict=True):
            yield row, dict(zip(*top, strict=True))
