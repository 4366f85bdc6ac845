"""Rows that draw none or several tokens: every token in its place, and KV only where blocks are."""

import random
from itertools import pairwise

import numpy as np
import pytest

from daemon.core.values.actions import Deliver, Submit
from daemon.core.values.events import StepDone
from daemon.scheduler.policies import POLICIES
from daemon.state.request import FinishReason
from daemon.wire.columns import decoder, encoder, int32
from tests.core.driver import Driver, configured
from tests.soak import dealt, tries

PROMPT = [1, 2, 3, 4, 5]


def outputs(driver: Driver, counts: tuple[int, ...], sequence: int = 0) -> int:
    """Answer a step; tokens that the sequence got of it."""
    before = len(driver.known[sequence])
    driver.answer(counts=counts)
    return len(driver.known[sequence]) - before


def test_a_row_draws_as_many_as_it_says() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 20)
    drawn = [outputs(driver, (count,)) for count in (1, 3, 0, 0, 2, 4)]
    assert drawn == [1, 3, 0, 0, 2, 2], "of the four that came last its block held two"
    driver.settle()
    assert driver.num_outputs(0) == 20
    driver.check_nothing_left()


def test_blocks_grow_behind_what_was_drawn() -> None:
    """The driver's laws see to it that no token is computed where no block is."""
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 40)
    table, held = driver.core.instances[0].scheduler.kv.table, []
    while driver.alive:
        held.append(int(table.held[0]))
        driver.answer(counts=(4,))
    assert all(after - before <= 1 for before, after in pairwise(held)) and held[-1] == 11
    assert len(held) < 20, "forty tokens in half as many steps"


def test_the_limit_ends_a_row_in_its_middle() -> None:
    driver = Driver(configured(block_size=16), 8)
    driver.arrive(PROMPT, 4)
    driver.answer(counts=(3,))
    driver.answer(counts=(3,))
    deliver = delivered(driver)
    assert deliver.rows.tolist() == [0] and deliver.reasons.tolist() == [FinishReason.LENGTH]
    assert driver.ended[0] is FinishReason.LENGTH and driver.num_outputs(0) == 4
    driver.check_nothing_left()


@pytest.mark.parametrize(
    ("max_tokens", "reason", "num_tokens"),
    [(9, FinishReason.STOP, 3), (3, FinishReason.STOP, 3), (2, FinishReason.LENGTH, 2)],
)
def test_a_stop_is_a_row_s_last_token(
    max_tokens: int, reason: FinishReason, num_tokens: int
) -> None:
    """Where the limit comes before it, it is not reached."""
    driver = Driver(configured(block_size=16), 8)
    driver.arrive(PROMPT, max_tokens)
    driver.answer(stops=frozenset({0}), counts=(3,))
    assert delivered(driver).reasons.tolist() == [0] * (num_tokens - 1) + [reason]
    assert driver.ended[0] is reason and driver.num_outputs(0) == num_tokens
    driver.check_nothing_left()


def test_rows_of_none_one_and_three_tokens_are_told_apart() -> None:
    driver = Driver(configured(block_size=16), 8)
    for number in range(4):
        driver.arrive([number, *PROMPT], 9)
    driver.answer()
    driver.answer()
    driver.abort(2)  # its row is void
    driver.answer(counts=(0, 3, 2, 3), fails=frozenset({3}))
    deliver = delivered(driver)
    assert deliver.rows.tolist() == [0, 1, 2, 5]
    assert deliver.sequences.tolist() == [128, 128, 128, 384]
    assert deliver.reasons.tolist() == [0, 0, 0, FinishReason.ERROR]
    driver.settle()
    assert {driver.num_outputs(sequence) for sequence in (0, 128)} == {9}


def delivered(driver: Driver) -> Deliver:
    """What the newest answer came to."""
    (found,) = (one for one in driver.actions[-1] if isinstance(one, Deliver))
    return found


def lively(policy: str, swap: str, seed: int) -> Driver:
    """A small life in which rows draw up to four tokens, one step at a time."""
    chance = random.Random(f"{policy} {swap} {seed}")
    config = configured(policy, swap=swap, max_running=6, prefix_cache=chance.random() < 0.5)
    driver = Driver(config, 20, num_host_blocks=40, copy_block_s=1e-6, token_s=1e-3)
    for _ in range(80):
        if chance.random() < 0.3:
            prompt = [chance.randrange(2) for _ in range(chance.randint(1, 30))]
            driver.arrive(prompt, chance.randint(1, 30), chance.choice([1, 1, 2]))
        stops = frozenset({chance.randrange(12)})
        driver.answer(stops=stops, counts=tuple(chance.choice([0, 1, 1, 3, 4]) for _ in range(6)))
        if chance.random() < 0.5:
            driver.copied()
        if chance.random() < 0.1 and driver.alive:
            driver.seal(chance.choice(sorted(driver.alive)))
        if chance.random() < 0.02:
            driver.lose(0)
            driver.ready(0, 20)
    driver.settle()
    driver.check_nothing_left()
    return driver


@pytest.mark.parametrize(
    ("policy", "swap"), dealt(sorted(POLICIES), ["recompute", "reactive", "proactive", "dynamic"])
)
def test_what_gave_way_goes_on_where_it_was(policy: str, swap: str) -> None:
    """The Driver compares every token with the sequence's truth, and each KV it attends to."""
    lives = [lively(policy, swap, seed) for seed in range(1, tries(4, 40), 2)]
    if policy not in ("orca", "static"):
        assert sum(one.core.counters.preemptions for one in lives)
    if swap != "recompute" and policy in ("sarathi", "speculative", "mlfq"):
        assert sum(one.core.counters.swaps_in for one in lives)


@pytest.mark.parametrize(
    ("depth", "counts", "reason", "said"),
    [
        (1, [1, 1], 0, "2 counts for 1 rows"),
        (1, [0], FinishReason.STOP, "a row ends without a token"),
        (2, [2], 0, "step 3 expects one token of each row"),
        (2, [0], 0, "step 3 expects one token of each row"),
        (1, [12], 0, "more tokens than its blocks hold"),
    ],
)
def test_counts_that_no_worker_may_answer(
    depth: int, counts: list[int], reason: int, said: str
) -> None:
    driver = Driver(configured(depth=depth), 8)
    driver.arrive(PROMPT, 20)
    driver.answer()
    step = driver.workers[0].pending[0].batch.step
    driver.tick()
    done = StepDone(driver.now, 0, step, np.array([reason], np.uint8), 0.001, int32(counts))
    with pytest.raises(ValueError, match=said):
        driver.core.handle(done)


def test_a_step_is_not_repeated_after_one_that_counted() -> None:
    driver = Driver(configured(block_size=16), 8)
    driver.arrive(PROMPT, 30)
    for _ in range(4):
        driver.answer()
    driver.answer(counts=(3,))
    (batch,) = (one.batch for one in driver.actions[-1] if isinstance(one, Submit))
    assert batch.starts.tolist() == [len(PROMPT) + 6]
    driver.settle()
    assert driver.num_outputs(0) == 30


def test_a_journal_of_before_has_one_token_of_each_row() -> None:
    event = StepDone(1.0, 0, 7, np.zeros(2, np.uint8), 0.5)
    shorter = decoder(list[object]).decode(encoder().encode(event))[:-1]
    old = decoder(StepDone).decode(encoder().encode(shorter))
    assert old.counts.size == 0 and old.step == 7 and old.reasons.tolist() == [0, 0]
