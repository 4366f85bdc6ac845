"""Asleep instances: they wake where no other has room, and not for less than the wake is worth."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.instance.instance import WorkerState
from daemon.core.values.events import Configured, InstanceDrained, InstanceGivenUp
from daemon.core.view.checkpoint import checkpoint, restore
from tests.core.driver import Driver, configured


def sleepy(wake_s: float, placement: str = "aladdin", instances: int = 2) -> Configured:
    """All but the first instance are asleep."""
    made = configured(instances=instances, placement=placement, max_running=4)
    first, *others = made.instances
    asleep = [msgspec.structs.replace(other, wakes_in_s=wake_s) for other in others]
    return msgspec.structs.replace(made, instances=(first, *asleep))


def state(driver: Driver, instance: int = 1) -> WorkerState:
    return driver.core.instances[instance].state


def crowd(driver: Driver, num: int = 12) -> None:
    for number in range(num):
        request = driver.arrive([number] * 20, 60)
        driver.predict(request, 60)


@pytest.mark.parametrize("placement", ["aladdin", "least_loaded", "jsq"])
def test_an_instance_wakes_once_where_no_other_has_room(placement: str) -> None:
    driver = Driver(sleepy(0.05, placement), 60)
    driver.arrive([1] * 8, 4)
    assert state(driver) is WorkerState.ASLEEP and not driver.woken
    crowd(driver)
    assert driver.woken == [1] and state(driver) is WorkerState.LOADING
    driver.ready(1, 60)
    driver.settle()
    assert driver.core.instances[1].scheduler.step > 0, "waiting sequences move there"
    driver.check_nothing_left()


def test_what_is_over_sooner_than_a_wake_wakes_none() -> None:
    driver = Driver(sleepy(600.0), 60)
    crowd(driver)
    driver.settle()
    assert not driver.woken and state(driver) is WorkerState.ASLEEP
    driver.check_nothing_left()


def test_a_lack_of_room_that_lasts_as_long_as_a_wake_wakes_one() -> None:
    driver = Driver(sleepy(5.0), 60)
    crowd(driver)
    driver.now += 4.9
    crowd(driver, 1)
    assert not driver.woken
    driver.now += 0.2
    crowd(driver, 1)
    assert driver.woken == [1]


@pytest.mark.parametrize("placement", ["aladdin", "least_loaded"])
def test_a_lack_of_room_that_lasts_wakes_one_though_no_other_request_comes(placement: str) -> None:
    driver = Driver(sleepy(5.0, placement), 60)
    crowd(driver)
    assert not driver.woken, "by its step times all would be over soon"
    for _ in range(6):
        driver.answer(step_s=1.0)
    assert driver.woken == [1]
    driver.ready(1, 60)
    driver.settle()
    driver.check_nothing_left()


def test_a_lack_of_room_that_is_over_wakes_none_later() -> None:
    driver = Driver(sleepy(5.0, "least_loaded"), 60)
    crowd(driver)
    driver.settle()
    driver.now += 5.0
    for number in range(4):
        driver.arrive([number] * 20, 60)
    driver.arrive([5] * 20, 60)
    assert not driver.woken and driver.core.instances[0].scheduler.waiting
    driver.settle()
    driver.check_nothing_left()


def test_another_wakes_only_once_the_one_before_is_ready() -> None:
    driver = Driver(sleepy(0.05, instances=3), 60)
    crowd(driver)
    assert driver.woken == [1]
    driver.ready(1, 60)
    crowd(driver, 30)
    assert driver.woken == [1, 2]
    driver.ready(2, 60)
    driver.settle()
    driver.check_nothing_left()


def test_an_instance_that_is_given_up_is_replaced() -> None:
    driver = Driver(sleepy(600.0), 60)
    driver.lose(0)
    driver.handle(InstanceGivenUp(driver.now, 0))
    assert driver.woken == [1]


def test_a_request_that_only_an_asleep_instance_may_hold_wakes_it() -> None:
    driver = Driver(sleepy(600.0), 10)
    asked = driver.arrive([1] * 30, 30)
    assert driver.rejected[asked].kind == "not_ready" and driver.woken == [1]
    driver.ready(1, 60)
    again = driver.arrive([1] * 30, 30)
    driver.settle()
    assert again not in driver.rejected and driver.core.instances[1].scheduler.step > 0


def test_a_request_wakes_none_while_the_first_worker_loads() -> None:
    driver = Driver(sleepy(600.0), 0)
    asked = driver.arrive([1] * 30, 30)
    assert driver.rejected[asked].kind == "not_ready" and not driver.woken


def test_an_instance_that_is_drained_is_replaced() -> None:
    driver = Driver(sleepy(600.0), 60)
    driver.handle(InstanceDrained(driver.now, 0))
    assert not driver.woken
    driver.arrive([1] * 8, 4)
    assert driver.woken == [1]
    driver.ready(1, 60)
    driver.settle()
    driver.check_nothing_left()


def test_a_wake_is_taken_to_last_as_long_as_the_one_before() -> None:
    driver = Driver(sleepy(0.05, instances=3), 60)
    crowd(driver)
    driver.now += 600.0
    driver.ready(1, 60)
    crowd(driver, 30)
    assert driver.woken == [1], "the next would take ten minutes too"
    asleep = driver.core.dispatch.asleep
    assert asleep.wakes_in_s(driver.core.instances[2]) == pytest.approx(600.0)


def test_nothing_is_learned_from_a_wake_that_failed() -> None:
    driver = Driver(sleepy(0.05), 60)
    crowd(driver)
    driver.lose(1)
    driver.now += 600.0
    driver.ready(1, 60)
    asleep = driver.core.dispatch.asleep
    assert asleep.wakes_in_s(driver.core.instances[1]) == 0.05
    driver.settle()


def test_a_checkpoint_keeps_who_sleeps_and_what_was_learned() -> None:
    driver = Driver(sleepy(5.0, instances=3), 60)
    crowd(driver)
    driver.now += 5.0
    crowd(driver, 1)
    driver.now += 3.0
    driver.ready(1, 60)
    driver.settle()
    restored = Core(driver.config)
    restore(restored, checkpoint(driver.core, driver.now))
    states = [instance.state.value for instance in restored.instances]
    assert states == ["ready", "ready", "asleep"]
    assert restored.dispatch.asleep.due_s == driver.core.dispatch.asleep.due_s
    known = restored.dispatch.asleep.state
    assert known == driver.core.dispatch.asleep.state and list(known.took_s.values()) == [3.0]
