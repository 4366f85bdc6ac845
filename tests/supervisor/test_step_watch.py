"""When a step takes too long, by a clock that the test holds."""

import random

import pytest

from daemon.supervisor.step_watch import AGAIN_S, COMPILE_S, FACTOR, LEAST_S, PATIENCE, StepWatch


def never() -> float:
    """What a worker says that never waits for a processor."""
    return 0.0


def looked(watch: StepWatch, now: float) -> float:
    """Look as told until it hangs or an hour is over; when that was."""
    end_s = now + 3600.0
    while now < end_s:
        wait_s = watch.look(now, never)
        if not wait_s:
            return now
        now += wait_s
    return now


def test_a_step_that_never_answers_is_found_after_the_least_time() -> None:
    watch = StepWatch(0.01)
    assert not watch.waiting
    watch.sent(100.0, 1)
    assert watch.waiting
    assert looked(watch, 100.0) == pytest.approx(100.0 + LEAST_S + AGAIN_S)


def test_slow_steps_give_their_successors_time() -> None:
    watch = StepWatch(0.01)
    now = 0.0
    for _ in range(200):
        watch.sent(now, 1)
        now += 0.5
        watch.answered(now)
    assert watch.limit_s == pytest.approx(FACTOR * 0.5)
    watch.sent(now, 1)
    assert looked(watch, now) == pytest.approx(now + FACTOR * 0.5 + AGAIN_S)


def test_one_slow_step_in_many_changes_nothing() -> None:
    watch = StepWatch(0.01)
    now = 0.0
    for number in range(300):
        watch.sent(now, 1)
        now += 4.0 if number == 150 else 0.01
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
    watch.answered(0.2)
    assert watch.look(5.0, never) == pytest.approx(0.2)
    watch.answered(5.1)
    assert not watch.waiting


def test_who_looks_late_looks_again_before_it_believes() -> None:
    """The daemon itself stood still for a minute: the answer lies in the socket, unread."""
    watch = StepWatch(0.01)
    watch.sent(0.0, 1)
    assert watch.look(60.0, never) == AGAIN_S
    watch.answered(60.1)
    watch.sent(60.1, 1)
    assert watch.look(65.2, never) > AGAIN_S, "that minute counts as the step's"


def test_a_worker_that_gets_no_processor_has_more_time_but_not_for_ever() -> None:
    watch = StepWatch(0.01)
    watch.sent(0.0, 1)
    now, alarms = LEAST_S, []
    while now < 100.0 and not alarms:
        wait_s = watch.look(now, lambda now=now: 1.5 * now)  # two threads wait 3/4 of it each
        alarms += [now] * (not wait_s)
        now += wait_s
    assert alarms == [pytest.approx(PATIENCE * LEAST_S, abs=AGAIN_S)]


def test_one_that_gets_a_processor_again_has_the_least_time_no_longer() -> None:
    watch = StepWatch(0.01)
    watch.sent(0.0, 1)
    assert watch.look(6.0, lambda: 5.0) == AGAIN_S
    assert watch.look(6.25, lambda: 5.2) == AGAIN_S
    assert watch.look(6.5, lambda: 5.25) == 0.0


def test_no_alarm_in_an_hour_of_steps_whose_lengths_vary() -> None:
    chance = random.Random(3)
    watch = StepWatch(0.2)
    now = 0.0
    while now < 3_600.0:
        watch.sent(now, chance.randrange(1, 9))
        took_s = min(4.9, 0.2 * chance.expovariate(1.0))
        assert watch.look(now + took_s, never) > 0.0
        now += took_s
        watch.answered(now)


def test_compiling_is_no_hang_until_it_takes_too_long() -> None:
    watch = StepWatch(0.01)
    watch.compiles(5.0)
    watch.sent(10.0, 1)
    for now in (11.0, 12.0, 30.0):
        watch.compiles(now)
    assert looked(watch, 30.0) == pytest.approx(30.0 + LEAST_S + AGAIN_S)
    watch.answered(31.0)
    watch.sent(31.0, 1)
    assert watch.limit_s == pytest.approx(FACTOR * 1.0), "what was excused was no step's time"
    for second in range(1000):
        watch.compiles(31.0 + second)
    assert looked(watch, 1031.0) == 1031.0 + AGAIN_S
    assert watch.limit_s == pytest.approx(FACTOR * 1.0 + COMPILE_S)
