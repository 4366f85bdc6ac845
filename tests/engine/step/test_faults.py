"""Faults within a step: no memory, logits that are no numbers, and what they leave in blocks."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
import torch

from daemon.engine.batch.streams import StreamError
from daemon.engine.layers.ranks import Ranks
from daemon.engine.step.step import Engine
from daemon.engine.worker.faults import FaultyEngine
from daemon.protocol.worker import Plan, Reply
from daemon.state.request import FinishReason
from daemon.wire.faults import Fault, Faults
from tests.engine.driver import Driver, Running
from tests.engine.model.test_exactness import driver, load, prompt
from tests.engine.tiny import greedy, reference, save

LENGTHS = (9, 20, 3)


class At(Fault):
    """A fault that strikes at stated visits."""

    def __init__(self, *visits: int) -> None:
        super().__init__(1.0, 0)
        self._visits = visits
        self.visited = 0

    def strikes(self) -> bool:
        self.visited += 1
        return self.visited - 1 in self._visits


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load(save("llama", tmp_path_factory.mktemp("llama")))


def faulty(engine: Engine, faults: dict[str, Fault]) -> Callable[[Plan], Reply]:
    """What computes plans with these faults."""
    inner = FaultyEngine(engine, Faults(faults))
    return lambda plan: inner.begin(plan).finish()


def step(run: Callable[[Plan], Reply], plans: Driver, sequences: list[Running]) -> Reply:
    """Whatever is left of each sequence, together."""
    work = [(one, len(one.tokens) - one.num_computed) for one in sequences]
    with torch.inference_mode():
        reply = run(plans.plan(work))
    plans.take(work, reply)
    return reply


def expected(count: int) -> list[list[int]]:
    return [greedy(reference("llama"), prompt(length, length), count) for length in LENGTHS]


def added(plans: Driver) -> list[Running]:
    return [plans.add(slot, prompt(length, length)) for slot, length in enumerate(LENGTHS)]


def test_steps_without_memory_are_computed_row_by_row(engine: Engine) -> None:
    # The first try of three steps fails: a prefill, a mixed one (after a chunk), and a decode.
    fault = At(0, 4, 9)
    run, plans = faulty(engine, {"worker.oom": fault}), driver()
    sequences = added(plans)
    chunked = plans.add(5, prompt(30, 30))
    step(run, plans, sequences)
    with torch.inference_mode():
        work = [(chunked, 7), *((one, 1) for one in sequences)]
        plans.take(work, run(plans.plan(work)))
    for _ in range(6):
        step(run, plans, [*sequences, chunked])
    assert fault.visited > 9, "it was tried again, row by row"
    for one, tokens in zip(sequences, expected(8), strict=True):
        assert one.outputs == tokens
    assert chunked.outputs == greedy(reference("llama"), prompt(30, 30), 6)


def test_a_row_without_memory_of_its_own_ends_the_step(engine: Engine) -> None:
    run, plans = faulty(engine, {"worker.oom": At(0, 1)}), driver()
    with pytest.raises(torch.OutOfMemoryError):
        step(run, plans, added(plans))


def test_a_rank_without_memory_ends_the_step(engine: Engine) -> None:
    """The others have theirs, and would compute something else."""
    backend = replace(engine.backend, ranks=cast(Ranks, object()))
    fault = At(0)
    run, plans = faulty(replace(engine, backend=backend), {"worker.oom": fault}), driver()
    with pytest.raises(torch.OutOfMemoryError):
        step(run, plans, added(plans))
    assert fault.visited == 1


def test_logits_that_are_no_numbers_end_their_own_row(engine: Engine) -> None:
    run, plans = faulty(engine, {"worker.nan": At(1)}), driver()
    sequences = added(plans)
    assert step(run, plans, sequences).errors == ()
    reply = step(run, plans, sequences)
    ((row, why),) = reply.errors
    assert row == 0 and "not a number" in why
    assert reply.reasons.tolist() == [FinishReason.ERROR, FinishReason.NONE, FinishReason.NONE]
    rest = sequences[1:]
    plans.leave(sequences[0])
    for _ in range(4):
        step(run, plans, rest)
    for one, tokens in zip(rest, expected(6)[1:], strict=True):
        assert one.outputs == tokens


def test_slow_steps_say_so_and_a_failed_copy_ends_the_step(engine: Engine) -> None:
    faults: dict[str, Fault] = {"worker.slow": Fault(1.0, 30), "worker.copy": At(0)}
    run, plans = faulty(engine, faults), driver()
    assert step(run, plans, added(plans)).elapsed_s >= 0.030
    plans.outs = [(0, 0)]
    with pytest.raises(StreamError):
        run(plans.plan([]))


def test_what_is_no_number_in_a_block_does_not_reach_its_next_owner(engine: Engine) -> None:
    with torch.inference_mode():
        engine.cache.blocks.fill_(torch.nan)
    plans = driver()
    sequences = added(plans)
    for _ in range(6):
        step(engine.run, plans, sequences)
    for one, tokens in zip(sequences, expected(6), strict=True):
        assert one.outputs == tokens
