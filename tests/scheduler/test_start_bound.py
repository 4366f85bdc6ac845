"""The bound on the wait of those that have not begun."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.scheduler.order import Order
from daemon.scheduler.policies.gittins import Gittins
from daemon.scheduler.policies.sarathi import Sarathi
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.start_bound import TAIL, TAIL_SHARE, StartBound
from daemon.state.request import State
from daemon.state.sequence import Sequence
from tests.core.driver import Driver, configured
from tests.scheduler.test_mlfq import sequence
from tests.scheduler.test_pace import Room, begun


def waits(arrival: int, arrived_s: float, priority: int = 0) -> Sequence:
    one = sequence(20, arrival)
    one.instance, one.arrived_s, one.priority = 0, arrived_s, priority
    return one


def watching(*ones: Sequence, backlog_s: float = 10.0) -> StartBound:
    bound = StartBound(0)
    bound.observe(backlog_s)
    for one in ones:
        bound.watch(one, len(ones))
    return bound


def test_who_has_waited_as_long_as_the_slowest_would_have_is_overdue() -> None:
    one = waits(0, 100.0)
    bound = watching(one)
    due_s = 100.0 + 10.0 * TAIL_SHARE
    assert bound.overdue(0, due_s - 0.1) is None
    assert bound.overdue(0, due_s + 0.1) is one


def test_before_anybody_came_nobody_is_overdue() -> None:
    bound = StartBound(0)
    bound.watch(waits(0, 0.0), 1)
    assert bound.bound_s == math.inf and bound.overdue(0, 1e9) is None


def test_the_oldest_of_its_priority_comes_first() -> None:
    younger, older, worse = waits(0, 5.0), waits(1, 3.0), waits(2, 1.0, priority=1)
    bound = watching(younger, older, worse)
    assert bound.overdue(0, 99.0) is older
    assert bound.overdue(1, 99.0) is worse
    assert bound.overdue(2, 99.0) is None


def test_whoever_began_or_left_is_not_overdue() -> None:
    one, other, third = (waits(number, float(number)) for number in range(3))
    bound = watching(one, other, third)
    one.state, other.instance = State.RUNNING, 1
    assert bound.overdue(0, 99.0) is third


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=1200))
def test_the_tail_is_of_the_latest(backlogs_s: list[float]) -> None:
    bound = StartBound(0)
    for backlog_s in backlogs_s:
        bound.observe(backlog_s)
    expected_s = TAIL_SHARE * float(np.quantile(backlogs_s[-512:], TAIL))
    assert bound.bound_s == pytest.approx(expected_s)
    again = StartBound.restored(0, bound.state())
    assert again.bound_s == bound.bound_s and again.state() == bound.state()


def test_what_is_older_than_the_latest_is_forgotten() -> None:
    """Draws are seldom longer than the window."""
    bound = StartBound(0)
    for backlog_s in [99.0] * 600 + [1.0] * 512:
        bound.observe(backlog_s)
    assert bound.bound_s == TAIL_SHARE


def test_the_overdue_one_is_asked_in_before_the_first_in_the_order() -> None:
    room = Room()
    first, overdue = sequence(20, 1), waits(0, 0.0)
    room.order.start_bound = watching(overdue)
    assert room.pace.next(first, room.kv, 1.0) is first
    assert room.pace.next(first, room.kv, 9.0) is overdue


def test_a_stream_whose_pause_is_over_goes_before_the_overdue_one() -> None:
    room = Room()
    paused = room.leave(room.run(begun(16, 2), 0.0), 1.0)
    room.order.start_bound = watching(waits(0, 0.0))
    assert room.pace.next(sequence(20, 1), room.kv, 99.0) is paused


def test_steps_are_drained_together() -> None:
    """Two steps of one decode each take as long as one work of two decodes over two steps."""
    model = StepTimeModel(0.01, 0.001)
    for decodes in range(1, 65):
        chunk = ((decodes, 0),) if decodes % 3 == 0 else ()
        work = StepWork(decodes, 100 * decodes, chunk)
        model.observe(work, 0.01 + 0.002 * decodes + 0.001 * sum(size for size, _ in chunk))
    apart_s = 2 * model.predict_s(StepWork(8, 800))
    assert model.drain_s(2, 16, 1600, 0) == pytest.approx(apart_s)
    more_s = model.drain_s(2, 16, 1600, 50) - apart_s
    assert more_s == pytest.approx(model.drain_s(0, 0, 0, 50)) and more_s > 0.0


def test_priorities_of_which_nobody_waits_are_forgotten() -> None:
    """Clients choose priorities out of billions: what is kept of them has an end."""
    bound = StartBound(0)
    for priority in range(1000):
        one = waits(priority, float(priority), priority)
        bound.watch(one, 1)
        one.state = State.FINISHED
    assert len(bound._not_begun) < 100


def test_who_waits_while_policies_change_to_and_fro_is_watched_once() -> None:
    slots = SlotTable(1)
    order = Order(0, Gittins(), slots)
    order.start_bound.observe(0.0)
    ones = [waits(number, float(number)) for number in range(100)]
    for one in ones:
        order.enqueue(one, one.arrived_s, one.arrived_s)
    for policy in (Sarathi(), Gittins()) * 20:
        order.set_policy(policy, 100.0)
    while order.waiting.unranked:
        order.rank_some(60.0)
    assert order.start_bound.overdue(0, 100.0) is ones[0]
    assert len(order.start_bound._not_begun[0]._due) == len(ones)


@pytest.mark.parametrize("policy", ["gittins", "sarathi"])
def test_arrivals_tell_what_waits_before_them_where_the_policy_asks(policy: str) -> None:
    driver = Driver(configured(policy, max_running=1), 100)
    for number in range(4):
        driver.arrive([number] * 10, 20)
    (instance,) = driver.core.instances
    backlogs_s = instance.scheduler.order.start_bound.state()
    if policy == "sarathi":
        assert not backlogs_s
    else:
        first_s, second_s, *later_s = backlogs_s
        assert first_s == second_s == 0.0, "nobody waited before them"
        assert 0.0 < later_s[0] < later_s[1]


def test_who_comes_while_no_worker_lives_waits_for_one() -> None:
    driver = Driver(configured("gittins"), 100)
    driver.arrive([1] * 10, 20)
    driver.lose(0)
    driver.arrive([2] * 10, 20)
    driver.arrive([3] * 10, 20)
    driver.ready(0, 100)
    driver.settle()
    driver.check_nothing_left()
