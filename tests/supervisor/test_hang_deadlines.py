"""When an answer is too late, by a clock that the test holds."""

from collections.abc import Callable

import pytest

from daemon.supervisor.patience import LOOK_S, TIMES, Patience

LIMIT_S = 2.0


def never() -> float:
    """What a process says that never waits for a processor."""
    return 0.0


def ran_out_s(
    patience: Patience, now: float, starved_s: Callable[[], float] = never, limit_s: float = LIMIT_S
) -> float:
    """Look as often as one should, until it runs out or an hour is over; when that was."""
    for _ in range(round(3600.0 / LOOK_S)):
        now += LOOK_S
        if patience.runs_out(now, limit_s, starved_s):
            return now
    return now


def test_what_never_comes_is_late_after_its_time() -> None:
    patience = Patience()
    patience.begin(100.0)
    assert ran_out_s(patience, 100.0) == pytest.approx(100.0 + LIMIT_S + LOOK_S)


@pytest.mark.parametrize("stood_still_s", [1.0, 60.0, 1e6])
def test_a_waiter_that_stood_still_waits_on(stood_still_s: float) -> None:
    """Stopped, or on a frozen machine, where the other one stood still as well."""
    patience = Patience()
    patience.begin(0.0)
    assert not patience.runs_out(LOOK_S, LIMIT_S, never)
    awake_s = LOOK_S + stood_still_s
    assert not patience.runs_out(awake_s, LIMIT_S, never)
    assert patience.waited_s(awake_s) == pytest.approx(3 * LOOK_S)
    assert ran_out_s(patience, awake_s) == pytest.approx(awake_s + LIMIT_S - 2 * LOOK_S)


def test_a_waiter_that_is_always_late_finds_it_all_the_same() -> None:
    patience = Patience()
    patience.begin(0.0)
    looks = [patience.runs_out(5.0 * number, LIMIT_S, never) for number in range(1, 7)]
    assert looks == [False] * 4 + [True] * 2


def test_who_looks_late_looks_again_before_it_believes() -> None:
    """The answer may lie in the socket, unread."""
    patience = Patience()
    patience.begin(0.0)
    for number in range(1, 8):
        assert not patience.runs_out(number * LOOK_S, LIMIT_S, never)
    assert not patience.runs_out(60.0, LIMIT_S, never), "late by now, for the first time"
    assert patience.runs_out(60.0 + LOOK_S, LIMIT_S, never)


def test_one_that_gets_no_processor_has_more_time_but_not_for_ever() -> None:
    starved_s = [0.0]

    def starves() -> float:
        starved_s[0] += 0.6 * LOOK_S
        return starved_s[0]

    patience = Patience()
    patience.begin(0.0)
    assert ran_out_s(patience, 0.0, starves) == pytest.approx(TIMES * LIMIT_S)


def test_one_that_gets_a_processor_again_has_no_more_time() -> None:
    said = iter([5.0, 5.2, 5.4, 5.45])
    patience = Patience()
    patience.begin(0.0)
    assert ran_out_s(patience, 0.0, lambda: next(said)) == pytest.approx(LIMIT_S + 3 * LOOK_S)


def test_every_answer_begins_anew() -> None:
    patience = Patience()
    for number in range(100):
        patience.begin(1.9 * number)
        for look in range(1, 8):
            assert not patience.runs_out(1.9 * number + look * LOOK_S, LIMIT_S, never)
