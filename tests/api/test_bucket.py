"""A quota lets through what it says, and its waits are honest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.api.http.account import Account
from daemon.api.http.bucket import MINUTE_S, Bucket
from daemon.api.replies.errors import ApiError
from daemon.config.schema import KeyConfig

STEPS = st.lists(
    st.tuples(st.floats(0, 90, allow_nan=False), st.floats(0.1, 200)), min_size=1, max_size=40
)


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Spent:
    """Something under way that has generated so much."""

    def __init__(self, num_generated: int = 0) -> None:
        self.num_generated = num_generated


@settings(max_examples=200)
@given(per_minute=st.integers(1, 1000), steps=STEPS)
def test_no_stretch_of_time_lets_more_through(per_minute: int, steps: list[tuple[float, float]]):
    bucket, now = Bucket(per_minute, 0.0), 0.0
    passed: list[tuple[float, float]] = []
    for pause_s, wanted in steps:
        now += pause_s
        amount = min(wanted, per_minute)
        if not bucket.wait_s(amount, now):
            bucket.charge(amount, now)
            passed.append((now, amount))
    for first, (begin_s, _) in enumerate(passed):
        for last in range(first, len(passed)):
            amount = sum(cost for _, cost in passed[first : last + 1])
            allowed = per_minute * (1 + (passed[last][0] - begin_s) / MINUTE_S)
            assert amount <= allowed * (1 + 1e-6)


@settings(max_examples=200)
@given(per_minute=st.integers(1, 1000), charges=STEPS, amount=st.floats(0.1, 1.0))
def test_a_wait_is_long_enough_and_no_longer(
    per_minute: int, charges: list[tuple[float, float]], amount: float
):
    bucket, now = Bucket(per_minute, 0.0), 0.0
    for pause_s, cost in charges:
        now += pause_s
        bucket.charge(cost, now)  # debts included
    wait_s = bucket.wait_s(amount, now)
    assert wait_s >= 0
    if wait_s > 0.01:
        assert bucket.wait_s(amount, now + wait_s * 0.99) > 0
    assert bucket.wait_s(amount, now + wait_s) == 0


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(0, 2000), st.floats(0, 100))
def test_a_changed_rate_forgives_nothing(old: int, new: int, used: float, pause_s: float):
    bucket = Bucket(old, 0.0)
    bucket.charge(used, 0.0)
    bucket.set_rate(new, 0.0)
    assert bucket.level(0.0) == pytest.approx(new - used)
    assert bucket.level(pause_s) <= new


def test_requests_a_minute():
    clock = Clock()
    account = Account(KeyConfig("alice", "", requests_per_minute=3), clock)
    for _ in range(3):
        account.charge_request()
    for expected_s in (20.0, 15.0):
        with pytest.raises(ApiError) as refusal:
            account.charge_request()
        assert (refusal.value.status, refusal.value.code) == (429, "quota_exceeded")
        assert refusal.value.retry_after_s == pytest.approx(expected_s)
        clock.now += 5.0
    clock.now += 10.0
    account.charge_request()
    with pytest.raises(ApiError):
        account.charge_request()


def test_tokens_count_when_they_are_known():
    clock = Clock()
    account = Account(KeyConfig("alice", "", tokens_per_minute=600), clock)
    account.charge_request()
    answer = Spent()
    lease = account.begin(1, 500, answer)
    account.charge_request()  # 100 are left
    answer.num_generated = 700
    with pytest.raises(ApiError) as refusal:  # running answers count as they grow
        account.charge_request()
    assert refusal.value.retry_after_s == pytest.approx(60.1)  # -600 tokens at 10 a second, and 1
    answer.num_generated = 750
    lease.end()
    lease.end()
    clock.now += 60.0
    with pytest.raises(ApiError) as refusal:
        account.charge_request()
    assert refusal.value.retry_after_s == pytest.approx(5.1)
    clock.now += 5.1
    account.charge_request()


def test_answers_under_way():
    clock = Clock()
    account = Account(KeyConfig("alice", "", max_running=3), clock)
    leases = [account.begin(1, 10, Spent()) for _ in range(3)]
    with pytest.raises(ApiError) as refusal:
        account.begin(1, 10, Spent())
    assert (refusal.value.status, refusal.value.code) == (429, "too_many_running")
    assert account.num_running == 3
    clock.now += 4.0
    leases.pop().end()
    clock.now += 4.0
    leases.pop().end()  # one every four seconds
    assert account.num_running == 1
    with pytest.raises(ApiError) as refusal:
        account.begin(4, 10, Spent())
    assert (refusal.value.status, refusal.value.param) == (400, "n")
    with pytest.raises(ApiError) as refusal:
        account.begin(3, 10, Spent())
    assert refusal.value.retry_after_s == pytest.approx(4.0)


def test_a_key_bounds_the_priority():
    account = Account(KeyConfig("alice", "", priority=2))
    assert [account.priority(asked) for asked in (None, -5, 2, 7)] == [2, 2, 2, 7]


def test_new_limits_keep_what_was_used():
    clock = Clock()
    account = Account(KeyConfig("alice", "", requests_per_minute=5), clock)
    for _ in range(5):
        account.charge_request()
    account.change(KeyConfig("alice", "", requests_per_minute=6))
    account.charge_request()
    with pytest.raises(ApiError):
        account.charge_request()
    account.change(KeyConfig("alice", ""))
    account.charge_request()
