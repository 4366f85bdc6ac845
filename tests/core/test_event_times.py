"""Every event brings its own time: nobody is judged by the time of the last plan."""

import pytest

from daemon.scheduler.policies.srtf import Srtf
from daemon.state.request import State, sequence_id
from tests.core.driver import Driver, configured


def running(policy: str) -> tuple[Driver, list[int]]:
    """Two that run, and then five seconds in which the worker says nothing."""
    driver = Driver(configured(policy, starve_s=0.3), 64)
    ones = [sequence_id(driver.arrive([number] * 9, 40), 0) for number in range(2)]
    driver.answer()
    driver.answer()
    driver.now += 5.0
    return driver, ones


@pytest.mark.parametrize("policy", ["mlfq", "speculative"])
def test_whoever_loses_its_worker_waits_from_then_on(policy: str) -> None:
    driver, ones = running(policy)
    driver.lose(0)
    for one in ones:
        sequence = driver.core.sequences[one]
        assert sequence.state is State.PREEMPTED
        assert sequence.waiting_since_s == driver.now
    driver.now += 0.1
    driver.ready(0, 64)
    assert not any(driver.core.sequences[one].promoted for one in ones)


def test_who_waited_already_when_the_worker_died_goes_on_waiting() -> None:
    driver = Driver(configured("mlfq", instances=2, max_running=1), 64)
    for number in range(4):
        driver.arrive([number] * 9, 40)
    waiting = list(driver.core.instances[0].scheduler.waiting)
    since_s = [one.waiting_since_s for one in waiting]
    assert waiting
    driver.now += 0.25
    driver.lose(0)
    assert [one.instance for one in waiting] == [1] * len(waiting)
    assert [one.waiting_since_s for one in waiting] == since_s


def seconds_left(driver: Driver, sequence: int) -> float:
    """Of one that runs and ranks by when it will be done."""
    one = driver.core.sequences[sequence]
    pace = driver.core.instances[0].step_time
    return one.rank - Srtf().rank(one, pace)


def test_a_prediction_counts_from_when_it_came() -> None:
    driver, (first, _) = running("srtf")
    driver.predict(0, 12)
    assert seconds_left(driver, first) == pytest.approx(driver.now)


def test_another_policy_counts_from_when_it_was_chosen() -> None:
    driver, (first, _) = running("sarathi")
    driver.choose("srtf")
    assert seconds_left(driver, first) == pytest.approx(driver.now)
