"""The 99th percentile of the last minute's steps."""

import random

import pytest

from daemon.runtime.recent_steps import RecentSteps


def test_it_is_that_of_the_steps_within_a_percent() -> None:
    chance, steps = random.Random(3), RecentSteps()
    taken = [chance.lognormvariate(-4.0, 1.0) for _ in range(5000)]
    for place, elapsed_s in enumerate(taken):
        steps.add(1000.0 + place / 200, elapsed_s)
    exact = sorted(taken)[4949]
    assert steps.p99_s(1025.0) == pytest.approx(exact, rel=0.011)


def test_one_slow_step_of_a_hundred_does_not_count_and_two_do() -> None:
    steps = RecentSteps()
    for _ in range(99):
        steps.add(5.0, 0.010)
    steps.add(5.0, 0.500)
    assert steps.p99_s(5.0) == pytest.approx(0.010, rel=0.011)
    steps.add(5.0, 0.500)
    assert steps.p99_s(5.0) == pytest.approx(0.500, rel=0.011)


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    steps = RecentSteps()
    assert steps.p99_s(0.0) == 0.0
    steps.add(100.0, 2.0)
    steps.add(130.0, 0.02)
    assert steps.p99_s(159.0) == pytest.approx(2.0, rel=0.011)
    assert steps.p99_s(165.0) == pytest.approx(0.02, rel=0.011)
    assert steps.p99_s(195.0) == 0.0


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0, 1e-9, 1e6])
def test_any_time_is_taken(elapsed_s: float) -> None:
    steps = RecentSteps()
    steps.add(1.0, elapsed_s)
    assert 0.0 < steps.p99_s(1.0) < 250.0
