"""Predictions are followed while they order answers better than chance, prompt class by class."""

import math
from collections import Counter
from collections.abc import Callable

import hypothesis.strategies as some
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from daemon.scheduler.checkpoint import SchedulerState, restore, state_of
from daemon.scheduler.order import Order
from daemon.scheduler.trust import LOST_BELOW, REGAINED_FROM, WINDOW, PredictorTrust
from daemon.wire.columns import decoder, encoder
from tests.core.driver import Driver, configured
from tests.scheduler.test_lengths import answer

SHORT, LONG = 20, 500
"""Prompts of two classes."""

Predicts = Callable[[int], int]
"""From an answer's length to what is predicted."""


def exact(true: int) -> int:
    return true


def wrong(true: int) -> int:
    return max(1, 10_000 // true)


def nonsense(seed: int) -> Predicts:
    chance = np.random.default_rng(seed)
    return lambda true: round(math.exp(chance.normal(4.0, 1.0)))


def end(trust: PredictorTrust, prompt: int, says: Predicts, count: int, seed: int = 0) -> int:
    """So many answers to such a prompt end; how often trust has changed."""
    chance = np.random.default_rng(seed)
    lengths = np.exp(chance.normal(4.0, 1.0, count)).round().astype(int) + 1
    return sum(trust.observe(prompt, says(true), true) for true in lengths.tolist())


def noisy(sigma: float) -> Predicts:
    chance = np.random.default_rng(1)
    return lambda true: max(1, round(true * math.exp(sigma * chance.standard_normal())))


def test_good_predictions_are_followed_and_an_adversarys_are_not() -> None:
    for says, holds in ((exact, True), (noisy(0.5), True), (noisy(1.0), True), (wrong, False)):
        trust = PredictorTrust()
        end(trust, SHORT, says, 200)
        assert trust.holds(SHORT) == holds
    trust = PredictorTrust()
    end(trust, SHORT, wrong, 25)
    assert not trust.holds(LONG), "nothing is known of these: they follow the verdict over all"


def test_a_constant_claims_nothing_and_keeps_trust() -> None:
    trust = PredictorTrust()
    before = trust.state()[0].votes
    assert not end(trust, SHORT, lambda true: 100, 100)
    assert trust.state()[0].votes == before


@settings(max_examples=12, deadline=None)
@given(some.integers(0, 1 << 20))
def test_a_class_of_nonsense_loses_trust_and_one_of_exact_predictions_keeps_it(seed: int) -> None:
    trust, says = PredictorTrust(), nonsense(seed)
    lost = False
    for part in range(60):
        end(trust, SHORT, exact, 5, seed + part)
        end(trust, LONG, says, 5, seed + 1000 + part)
        lost |= not trust.holds(LONG)
        assert trust.holds(SHORT) or part * 5 < WINDOW
    assert lost and trust.holds(SHORT)


@settings(max_examples=12, deadline=None)
@given(
    some.integers(0, 1 << 20),
    some.lists(
        some.tuples(some.sampled_from([0.0, 0.5, 1.0, None]), some.integers(1, 120)),
        min_size=1,
        max_size=8,
    ),
)
def test_no_verdict_changes_twice_within_few_answers(
    seed: int, phases: list[tuple[float | None, int]]
) -> None:
    """Through phases with such shares of exact predictions, the others being wrong; None: one that
    is wrong while it is trusted, and exact while it is not.
    """
    trust, chance = PredictorTrust(), np.random.default_rng(seed)
    least = math.ceil((REGAINED_FROM - LOST_BELOW) * WINDOW - 1e-9)
    counts, changed_at, before = Counter[int](), dict[int, int](), dict[int, bool]()
    for right, length in phases:
        for _ in range(length):
            prompt, true = int(chance.choice([SHORT, LONG])), int(chance.integers(1, 400))
            good = chance.random() < right if right is not None else not trust.holds(prompt)
            trust.observe(prompt, true if good else wrong(true), true)
            counts.update((-1, prompt.bit_length()))
            for one in trust.state():
                if len(one.votes) < WINDOW:
                    continue  # it follows the verdict over all
                if before.get(one.prompt, one.holds) != one.holds:
                    assert counts[one.prompt] - changed_at.get(one.prompt, -WINDOW) >= least
                    changed_at[one.prompt] = counts[one.prompt]
                before[one.prompt] = one.holds


@pytest.mark.parametrize("prompt", [SHORT, LONG])
def test_trust_goes_with_a_predictor_that_gets_bad_and_returns_with_a_good_one(prompt: int) -> None:
    trust = PredictorTrust()
    assert not end(trust, prompt, exact, 200)
    assert end(trust, prompt, wrong, 2 * WINDOW) == 1
    assert not trust.holds(prompt)
    assert end(trust, prompt, exact, 2 * WINDOW) == 1
    assert trust.holds(prompt)


def test_state_comes_back() -> None:
    trust = PredictorTrust()
    end(trust, SHORT, wrong, 70)
    end(trust, LONG, exact, 20)
    again = PredictorTrust.restored(trust.state())
    assert again.state() == trust.state()
    for one in (trust, again):
        end(one, LONG, exact, 60)
    assert again.state() == trust.state()


@pytest.mark.parametrize(("share", "holds"), [(0.9, True), (0.3, False)])
def test_a_checkpoint_of_an_older_journal_keeps_its_share(share: float, holds: bool) -> None:
    """It has no verdicts of classes, and one share that was smoothed."""
    scheduler = Driver(configured("speculative"), 32).core.instances[0].scheduler
    values = msgspec.msgpack.decode(encoder().encode(state_of(scheduler)))
    fields = SchedulerState.__struct_fields__
    values[fields.index("trust")] = [share, [[30, 40], [50, 20]]]
    older = msgspec.msgpack.encode(values[: fields.index("verdicts")])
    restore(scheduler, decoder(SchedulerState).decode(older), scheduler.step_time)
    trust = scheduler.order.trust
    assert trust.holds(SHORT) == holds
    assert trust.older() == (pytest.approx(share), [(30, 40), (50, 20)])


def order_of(policy: str) -> Order:
    """An instance's order, with room for nobody yet."""
    return Driver(configured(policy), 32).core.instances[0].scheduler.order


@settings(max_examples=25, deadline=None)
@given(
    some.sampled_from(["speculative", "srtf", "sjf"]),
    some.lists(some.tuples(some.booleans(), some.integers(1, 900)), max_size=12),
    some.lists(some.booleans(), min_size=1, max_size=6),
)
def test_a_queue_is_ordered_as_if_trust_had_always_been_so(
    policy: str, waiting: list[tuple[bool, int]], phases: list[bool]
) -> None:
    order, chance = order_of(policy), np.random.default_rng(3)
    for number, (short, predicted) in enumerate(waiting):
        one = answer(SHORT if short else LONG, 0, predicted, most=1000)
        one.id, one.arrival, one.high_tokens = 128 * number, number, 2 * predicted
        order.enqueue(one, 0.0, 0.0)
    for good in phases:
        for _ in range(70):
            true = int(chance.integers(1, 500))
            said = true if good else wrong(true)
            order.on_ended(answer(SHORT, true, said), 1.0)
        assert order.trust.holds(SHORT) == good
        fresh = order_of(policy)
        fresh.trust, fresh.step_time = order.trust, order.step_time
        for number, (short, predicted) in enumerate(waiting):
            one = answer(SHORT if short else LONG, 0, predicted, most=1000)
            one.id, one.arrival, one.high_tokens = 128 * number, number, 2 * predicted
            fresh.enqueue(one, 0.0, 0.0)
        assert [one.id for one in order.waiting] == [one.id for one in fresh.waiting]
        assert [one.rank for one in order.waiting] == [one.rank for one in fresh.waiting]
        assert all(one.trusted == order.trust.holds(one.num_prompt_tokens) for one in order.waiting)


def test_one_that_runs_is_ranked_anew_too_and_gets_its_prediction_back() -> None:
    driver = Driver(configured("speculative", prefix_cache=False), 100)
    driver.predict(driver.arrive([1] * SHORT, 100), 90)
    driver.answer()
    (live,) = driver.core.sequences.values()
    live.high_tokens = 150
    order = driver.core.instances[0].scheduler.order
    trusted_rank = live.rank
    for says in (wrong, exact):
        for true in range(1, 100, 2):
            order.on_ended(answer(SHORT, true, says(true)), driver.now)
        slot_rank = order.slots.rank[live.slot]
        assert live.rank == slot_rank
        if says is wrong:
            assert (live.trusted, live.expected_tokens) == (False, 32)
            assert slot_rank < trusted_rank
    assert (live.trusted, live.expected_tokens, live.high_tokens) == (True, 90, 150)
    assert slot_rank == pytest.approx(trusted_rank, rel=0.2)
    driver.settle()
    driver.check_nothing_left()
