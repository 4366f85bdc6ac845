"""ALISE's order: remaining time, age, and predictions that turn out too short."""

from daemon.scheduler.policies.speculative import AGING, GUESS_TOKENS, Speculative
from daemon.sequence import NEVER
from tests.scheduler.test_mlfq import STEP_S, learned_pace, sequence


def test_short_ones_first_and_old_ones_catch_up() -> None:
    policy, pace = Speculative(), learned_pace()
    short, long = sequence(5, 1), sequence(5, 0)
    short.expected_tokens, long.expected_tokens = 10, 110
    assert policy.rank(short, pace) < policy.rank(long, pace)
    short.arrived_s = 0.9 * 100 * STEP_S / AGING
    assert policy.rank(short, pace) < policy.rank(long, pace)
    short.arrived_s = 1.1 * 100 * STEP_S / AGING
    assert policy.rank(short, pace) > policy.rank(long, pace)


def test_without_a_prediction_a_common_length_is_expected() -> None:
    policy, one = Speculative(), sequence(5)
    policy.enter(one, learned_pace())
    assert one.expected_tokens == GUESS_TOKENS and one.predicted_tokens == -1
    assert one.review_at == 5 + GUESS_TOKENS


def test_what_outgrows_its_prediction_is_expected_to_be_long_and_then_doubled() -> None:
    policy, pace, one = Speculative(), learned_pace(), sequence(5)
    one.predicted_tokens = one.expected_tokens = 20
    one.high_tokens = 90
    policy.enter(one, pace)
    assert one.review_at == 25
    for outputs, expected in ((20, 90), (90, 180), (180, 360), (360, 720)):
        policy.review(one, outputs, pace)
        assert one.expected_tokens == expected and one.review_at == 5 + expected
    policy.review(one, 720, pace)
    assert one.review_at == NEVER, "its limit of 1,000 tokens ends it"
    assert one.predicted_tokens == 20, "what was predicted stays known"


def test_host_memory_counts_as_computed() -> None:
    policy, pace = Speculative(), learned_pace()
    kept, lost = sequence(200, 0), sequence(200, 1)
    for one in (kept, lost):
        one.expected_tokens = 50
    kept.parked_tokens = 199
    assert policy.rank(lost, pace) - policy.rank(kept, pace) > 0.15, "200 ms of prefill"
