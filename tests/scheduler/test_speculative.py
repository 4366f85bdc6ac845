"""ALISE's order: remaining time, memory, age, and predictions that turn out too short."""

import math

import pytest

from daemon.scheduler.policies.remaining import remaining_s
from daemon.scheduler.policies.speculative import (
    AGING,
    COMMON_TOKENS,
    GUESS_TOKENS,
    HEAVIEST,
    REVIEW_TOKENS,
    Speculative,
)
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
