"""When a step takes too long, by a clock that the test holds."""

import random

import pytest

from daemon.supervisor.patience import LOOK_S
from daemon.supervisor.step_watch import COMPILE_S, FACTOR, LEAST_S, StepWatch


def never() -> float:
    """What a worker says that never waits for a processor."""
    return 0.0


def looked(watch: StepWatch, now: float, until_s: float = 1e9) -> float:
    """Look as often as one should until it hangs or until then; when that was."""
    while now + LOOK_S <= until_s:
        now += LOOK_S
        if watch.hangs(now, never):
            return now
    return until_s


def test_a_step_that_never_answers_is_found_after_the_least_time() -> None:
    watch = StepWatch(0.01)
    assert not watch.waiting
    watch.sent(100.0, 1)
    assert watch.waiting
    assert looked(watch, 100.0) == pytest.approx(100.0 + LEAST_S + LOOK_S)


def test_slow_steps_give_their_successors_time() -> None:
    watch = StepWatch(0.01)
    now = 0.0
    for _ in range(200):
        watch.sent(now, 1)
        now += 0.5
        watch.answered(now)
    assert watch.limit_s == pytest.approx(FACTOR * 0.5)
    watch.sent(now, 1)
    assert looked(watch, now) == pytest.approx(now + FACTOR * 0.5 + LOOK_S)


def test_one_slow_step_in_many_changes_nothing() -> None:
    watch = StepWatch(0.01)
    now = 0.0
    for number in range(300):
        watch.sent(now, 1)
        now = looked(watch, now, now + (4.0 if number == 150 else 0.01))
        watch.answered(now)
    assert watch.limit_s == LEAST_S


def test_a_long_prompt_has_the_time_that_its_tokens_need() -> None:
    watch = StepWatch(step_s=0.03, token_s=0.004)
    now = 0.0
    for _ in range(100):
        watch.sent(now, 1)
        now += 0.03
        watch.answered(now)
    watch.sent(now, 2048)
    assert watch.limit_s == pytest.approx(FACTOR * (0.03 + 2048 * 0.004))


def test_a_step_begins_when_the_one_before_it_has_answered() -> None:
    watch = StepWatch(0.01)
    watch.sent(0.0, 1)
    watch.sent(0.1, 1)
    assert looked(watch, 0.0, 4.9) == 4.9
    watch.answered(4.9)
    assert looked(watch, 4.9, 9.8) == 9.8
    watch.answered(9.8)
    assert not watch.waiting


def test_what_a_daemon_stood_still_counts_neither_for_a_step_nor_for_its_successors() -> None:
    watch = StepWatch(0.01)
    watch.sent(0.0, 1)
    assert not watch.hangs(LOOK_S, never)
    assert not watch.hangs(60.0, never)
    watch.answered(60.1)
    watch.sent(60.1, 1)
    assert watch.limit_s == pytest.approx(FACTOR * 0.85, abs=0.01)
    assert looked(watch, 60.1, 65.0) == 65.0


def test_no_alarm_in_an_hour_of_steps_whose_lengths_vary() -> None:
    chance = random.Random(3)
    watch = StepWatch(0.2)
    now = 0.0
    while now < 3_600.0:
        watch.sent(now, chance.randrange(1, 9))
        answered_s = now + min(4.9, 0.2 * chance.expovariate(1.0))
        assert looked(watch, now, answered_s) == answered_s
        now = answered_s
        watch.answered(now)


def test_compiling_is_no_hang_until_it_takes_too_long() -> None:
    watch = StepWatch(0.01)
    watch.compiles(5.0)
    watch.sent(10.0, 1)
    now = 10.0
    for _ in range(20):
        now = looked(watch, now, now + 1.0)
        watch.compiles(now)
    assert now == 30.0
    assert looked(watch, now) == pytest.approx(30.0 + LEAST_S + LOOK_S)
    watch.answered(31.0 + LEAST_S)
    watch.sent(40.0, 1)
    assert watch.limit_s < FACTOR * (LEAST_S + 1.5), "what was excused was no step's time"


def test_a_compiler_that_never_ends_is_found() -> None:
    watch = StepWatch(0.01)
    watch.sent(0.0, 1)
    now = 0.0
    while not watch.hangs(now, never):
        watch.compiles(now)
        now += LOOK_S
    assert now == pytest.approx(LEAST_S + COMPILE_S + LOOK_S)
