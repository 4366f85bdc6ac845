"""What a rare event asks of thousands of sequences is done a few at a time, and all of it."""

import msgspec
import pytest

from daemon.core.chores import AT_ONCE, LATER
from daemon.core.values.actions import WakeAt
from daemon.core.values.events import Event, FlipOrdered, InstanceDrained, Tick, WorkerLost
from daemon.state.role import Role
from tests.core.driver import Driver, configured

MANY = 2 * AT_ONCE + 3 * LATER


def crowded(num_instances: int, at: int) -> Driver:
    """Instance `at` has all that wait."""
    driver = Driver(configured("sarathi", num_instances, max_running=1, max_waiting=10_000), 60)
    for other in range(num_instances):
        if other != at:
            driver.handle(InstanceDrained(driver.now, other))
    for number in range(MANY + 1):
        driver.arrive([number] * 20, 4)
    for other in range(num_instances):
        driver.core.instances[other].drained = False
    assert waiting(driver, at) == MANY
    return driver


def waiting(driver: Driver, index: int) -> int:
    return len(driver.core.instances[index].scheduler.waiting)


@pytest.mark.parametrize(
    "event",
    [
        WorkerLost(0.0, 0, False),
        InstanceDrained(0.0, 0),
        FlipOrdered(0.0, 0, Role.DECODE, ""),
    ],
    ids=["death", "drain", "flip"],
)
def test_all_leave_a_few_with_each_event_and_ticks_come_at_once(event: Event) -> None:
    driver = crowded(3, at=0)
    core = driver.core
    actions = core.handle(msgspec.structs.replace(event, now=driver.now))
    left = waiting(driver, 0)
    assert 0 < left <= MANY + 1 - AT_ONCE + 1
    assert WakeAt(driver.now) in actions
    while core.chores.left:
        actions = core.handle(Tick(driver.now))
        assert left - LATER - 2 <= waiting(driver, 0) < left, "some come by themselves"
        left = waiting(driver, 0)
    assert not left
    assert all(one.instance > 0 for one in core.sequences.values() if one.slot < 0)


def test_who_ended_or_left_meanwhile_is_passed_over() -> None:
    driver = crowded(3, at=0)
    core = driver.core
    core.handle(WorkerLost(driver.now, 0, False))
    last = max(one.request for one in core.sequences.values())
    driver.abort(last)
    driver.ready(0, 60)  # the others may stay
    left = waiting(driver, 0)
    while core.chores.left:
        core.handle(Tick(driver.now))
    assert left - 8 <= waiting(driver, 0) <= left
