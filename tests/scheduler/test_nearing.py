"""Ranges of the time that is left to begin: who is in which, and what ranking by them costs."""

import numpy as np
import pytest

from daemon.scheduler.nearing import LEAST_AGAIN_S, MOST_AT_ONCE, OPEN, Nearing
from daemon.scheduler.order import Order
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.synced import SyncedSdo
from daemon.scheduler.slots import SlotTable
from daemon.state.request import State
from daemon.state.sequence import Sequence
from tests.core.driver import Driver, configured
from tests.scheduler.test_mlfq import sequence


def within(*times_s: float) -> tuple[Nearing, list[Sequence]]:
    """All of them come at 100 s, and have to begin so many seconds later."""
    nearing, ones = Nearing(0), []
    for number, time_s in enumerate(times_s):
        one = sequence(20, number)
        one.instance, one.arrived_s = 0, 100.0
        nearing.watch(one, 100.0 + time_s, 100.0, len(ones))
        ones.append(one)
    return nearing, ones


def test_ranges_are_of_the_time_that_is_left_and_the_last_one_is_open() -> None:
    _, ones = within(0.4, 1.0, 2.1, 60.0, 1e6)
    assert [one.level for one in ones] == [0, 1, OPEN, OPEN, OPEN]


def test_time_moves_each_nearer_once_for_each_range() -> None:
    nearing, ones = within(10.0, 30.0, 0.4)
    seen: dict[int, list[int]] = {one.id: [] for one in ones}
    for now in np.arange(100.0, 129.99, 0.05).tolist():
        for one in nearing.changed(now):
            seen[one.id].append(one.level)
    assert seen[ones[1].id] == [1, 0]
    assert seen[ones[0].id][:3] == [1, 0, OPEN]
    assert seen[ones[2].id][0] == OPEN


def test_who_missed_its_time_is_not_urgent_and_has_another_one() -> None:
    """Each is twice as far from its arrival as the one before: in an hour there are few."""
    nearing, (one, late) = within(10.0, -3.0)
    assert late.level == OPEN and late.begin_by_s == 100.0 + LEAST_AGAIN_S
    times_s = {one.begin_by_s}
    for now in np.arange(100.0, 3700.0, 0.1).tolist():
        nearing.changed(now)
        times_s.add(one.begin_by_s)
    after_s = np.array(sorted(times_s)) - 100.0
    assert after_s.size == 10 and (after_s[1:] / after_s[:-1]).round(1).tolist() == [2.0] * 9


def test_much_time_that_passes_at_once_is_one_change() -> None:
    nearing, (one,) = within(10.0)
    assert nearing.changed(500.0) == [one] and one.level == OPEN
    assert one.begin_by_s == 900.0


def test_another_time_counts_in_the_place_of_the_first() -> None:
    nearing, (one,) = within(10.0)
    nearing.watch(one, 300.0, 101.0, 1)
    assert not nearing.changed(120.0) and one.level == OPEN
    assert nearing.changed(298.5) == [one]


def test_who_ended_or_went_elsewhere_is_followed_no_more() -> None:
    nearing, (ended, elsewhere) = within(10.0, 10.0)
    ended.state, elsewhere.instance = State.FINISHED, 1
    assert not nearing.changed(500.0)


def test_what_is_kept_of_those_that_left_has_an_end() -> None:
    nearing, _ = within()
    for number in range(5000):
        one = sequence(20, number)
        one.instance = 0
        nearing.watch(one, 1e9, 0.0, 1)
        one.state = State.FINISHED
    assert len(nearing._next) < 200


def test_ranking_costs_no_more_where_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is ranked as it comes and when its range changes, and few before one step."""
    num_ranked = 0
    rank = SyncedSdo.rank

    def counted(policy: SyncedSdo, one: Sequence, step_time: object) -> float:
        nonlocal num_ranked
        num_ranked += 1
        return rank(policy, one, step_time)  # type: ignore[arg-type]

    monkeypatch.setattr(SyncedSdo, "rank", counted)
    order = Order(0, POLICIES["synced-sdo"](), SlotTable(8))
    for number in range(2000):
        one = sequence(20, number)
        one.deadline_s = 15.0 + number % 7
        order.enqueue(one, 0.0, 0.0)
    assert num_ranked == 2000
    most, seen = 0, set()
    for step in range(2000):
        before = num_ranked
        order.near(step * 0.05)
        most = max(most, num_ranked - before)
        seen |= {one.level for one in order.waiting}
    assert most == MOST_AT_ONCE and seen == {0, 1, OPEN}
    assert 2 * 2000 < num_ranked < 20 * 2000, "of 2,000 steps beside 2,000 that wait"


def test_the_longest_goes_first_until_another_ones_deadline_is_near() -> None:
    """Both are due far away: of one range, in which the order of deadlines does not count."""
    driver = Driver(configured("synced-sdo", max_running=1, prefix_cache=False, max_len=600), 200)
    driver.step_s = 0.05
    driver.predict(driver.arrive([1] * 8, 60), 60)
    driver.answer()
    waiting = driver.core.instances[0].scheduler.waiting
    short = driver.arrive([2] * 4, 8, deadline_s=driver.now + 3.5)
    long = driver.arrive([3] * 200, 8, deadline_s=driver.now + 400.0)
    for request in (short, long):
        driver.predict(request, 8)
    assert [one.request for one in waiting] == [long, short]
    while driver.now < 1.5:
        driver.answer()
    assert [one.request for one in waiting] == [short, long]
    driver.settle()
    driver.check_nothing_left()


def test_two_lives_with_the_same_events_are_the_same() -> None:
    """Time comes with events alone."""
    plans = []
    for _ in range(2):
        driver = Driver(configured("packed"), 40, 0.03)
        for number in range(12):
            driver.arrive([number] * 6, 20, deadline_s=driver.now + 0.3 * number)
            driver.answer()
        driver.settle()
        plans.append([str(made) for made in driver.actions])
    assert plans[0] == plans[1]
