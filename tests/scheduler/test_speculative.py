"""ALISE's order: remaining time, memory, age, and predictions that turn out too short."""

import math

import pytest

from daemon.scheduler.policies.remaining import remaining_s
from daemon.scheduler.policies.speculative import (
    AGING,
    COMMON_TOKENS,
    FIRST_STEPS,
    GUESS_TOKENS,
    HEAVIEST,
    QUEUES,
    REVIEW_TOKENS,
    Speculative,
    SpeculativeQueues,
)
from daemon.state.request import sequence_id
from tests.core.driver import Driver, configured
from tests.scheduler.test_mlfq import STEP_S, learned_step_time, sequence


def test_short_ones_first_and_old_ones_catch_up() -> None:
    policy, step_time = Speculative(), learned_step_time()
    short, long = sequence(5, 1), sequence(5, 0)
    short.expected_tokens, long.expected_tokens = 10, 110
    lead_s = policy.rank(long, step_time) - policy.rank(short, step_time)
    assert lead_s == pytest.approx(110 * STEP_S * math.sqrt(60 / COMMON_TOKENS), rel=0.2)
    short.arrived_s = 0.9 * lead_s / AGING
    assert policy.rank(short, step_time) < policy.rank(long, step_time)
    short.arrived_s = 1.1 * lead_s / AGING
    assert policy.rank(short, step_time) > policy.rank(long, step_time)


def test_of_two_with_the_same_time_left_the_one_that_holds_less_goes_first() -> None:
    policy, step_time = Speculative(), learned_step_time()
    small, large = sequence(100, 1), sequence(900, 0)
    for one in (small, large):
        one.expected_tokens = 50
        one.residence.parked_tokens = one.num_known_tokens - 1
    assert policy.rank(large, step_time) > 2.5 * policy.rank(small, step_time)


def test_a_long_context_waits_for_newcomers_so_long_and_no_longer() -> None:
    """32k tokens: whoever comes HEAVIEST / AGING times its own time later, comes after it."""
    policy, step_time = Speculative(), learned_step_time()
    large, new = sequence(32_000, 0), sequence(5, 1)
    large.expected_tokens = 500
    new.expected_tokens = 1
    own_s = remaining_s(large, step_time)
    new.arrived_s = 1.01 * HEAVIEST / AGING * own_s
    assert policy.rank(large, step_time) < policy.rank(new, step_time)


def test_without_a_prediction_a_common_length_is_expected() -> None:
    policy, one = Speculative(), sequence(5)
    policy.enter(one, learned_step_time())
    assert one.expected_tokens == GUESS_TOKENS and one.predicted_tokens == -1
    assert one.review_at == 5 + GUESS_TOKENS


def test_what_outgrows_its_prediction_is_expected_to_be_long_and_then_doubled() -> None:
    policy, step_time, one = Speculative(), learned_step_time(), sequence(5)
    one.predicted_tokens = one.expected_tokens = 20
    one.high_tokens = 90
    policy.enter(one, step_time)
    assert one.review_at == 25
    for outputs, expected in ((20, 90), (52, 90), (90, 180), (180, 360), (360, 720), (720, 1440)):
        policy.review(one, outputs, step_time)
        assert one.expected_tokens == expected
        assert one.review_at == 5 + min(expected, outputs + REVIEW_TOKENS)
    policy.review(one, 999, step_time)
    assert one.expected_tokens == 1440, "its limit of 1,000 tokens ends it"
    assert one.predicted_tokens == 20, "what was predicted stays known"


def test_host_memory_counts_as_computed() -> None:
    policy, step_time = Speculative(), learned_step_time()
    kept, lost = sequence(200, 0), sequence(200, 1)
    for one in (kept, lost):
        one.expected_tokens = 50
    kept.residence.parked_tokens = 199
    prefill_s = 0.2 * math.sqrt(225 / COMMON_TOKENS)
    assert policy.rank(lost, step_time) - policy.rank(kept, step_time) == pytest.approx(
        prefill_s, rel=0.1
    )


@pytest.mark.parametrize(
    ("num_tokens", "queue"), [(1, 0), (FIRST_STEPS, 0), (33, 1), (65, 2), (1000, 5)]
)
def test_the_queue_is_that_of_the_steps_left(num_tokens: int, queue: int) -> None:
    policy, step_time, one = SpeculativeQueues(), learned_step_time(), sequence(5)
    one.expected_tokens = one.predicted_tokens = num_tokens
    policy.enter(one, step_time)
    assert policy.rank(one, step_time) == one.level == queue < QUEUES


def test_who_comes_nearer_to_its_end_rises_and_who_outgrows_its_prediction_falls() -> None:
    policy, step_time, one = SpeculativeQueues(), learned_step_time(), sequence(5)
    one.expected_tokens = one.predicted_tokens = 100
    policy.enter(one, step_time)
    levels = [one.level]
    for outputs in (40, 70, 100, 190):
        policy.review(one, outputs, step_time)
        levels.append(one.level)
    assert levels == [2, 1, 0, 2, 0], "at 100 it is expected to be 200 long"


def test_who_waits_for_the_threshold_rises_by_one_queue_each_time() -> None:
    policy, step_time, one = SpeculativeQueues(), learned_step_time(), sequence(5)
    one.expected_tokens = one.predicted_tokens = 200
    policy.enter(one, step_time)
    for level in (2, 1, 0):
        assert policy.patience_s(one, 0.3, step_time) == 0.3
        policy.promote(one, step_time)
        assert one.level == level
    assert policy.patience_s(one, 0.3, step_time) == math.inf
    policy.review(one, 32, step_time)
    assert one.level == 0, "it keeps what it has risen"
    policy.review(one, 200, step_time)
    assert one.level == 3, "but for a prediction that was too short"


@pytest.mark.parametrize(("starve_s", "is_served"), [(0.1, True), (100.0, False)])
def test_newcomers_that_are_shorter_do_not_keep_a_long_one_out_for_ever(
    starve_s: float, is_served: bool
) -> None:
    config = configured("speculative-queues", max_running=1, starve_s=starve_s, max_len=400)
    driver = Driver(config, 200, num_host_blocks=400)
    long = driver.arrive([1] * 8, 300)
    driver.predict(long, 300)
    for number in range(200):
        driver.predict(driver.arrive([2 + number % 7] * 8, 4), 4)
        for _ in range(4):
            driver.answer()
        driver.copied()
    assert (driver.num_outputs(sequence_id(long, 0)) > 10) is is_served
    driver.settle()
    driver.check_nothing_left()
