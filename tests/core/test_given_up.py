"""An instance is given up: what only it could hold ends with a clear error, and nothing waits."""

import pytest

from daemon.core.values.actions import Finished
from daemon.core.values.events import InstanceGivenUp
from daemon.state.request import NO_PLACE, FinishReason
from daemon.state.role import Role
from tests.core.driver import Driver, configured

LONG = list(range(60))  # with its answer, only the first instance can hold it


def large_and_small() -> Driver:
    driver = Driver(configured("gittins", 2))
    driver.ready(0, 40)
    driver.ready(1, 6)
    driver.link_all()
    return driver


def give_up(driver: Driver, instance: int) -> list[Finished]:
    actions = driver.handle(InstanceGivenUp(driver.now, instance))
    return [one for one in actions if isinstance(one, Finished)]


def test_what_only_it_could_hold_ends_and_the_rest_goes_on() -> None:
    driver = large_and_small()
    long, n = driver.arrive(LONG, 30), driver.arrive(LONG, 30, n=2)
    short = driver.arrive([1, 2, 3], 8)
    for _ in range(5):
        driver.answer(0)
    driver.lose(0)
    assert {long * 128, n * 128, n * 128 + 1} <= driver.alive.keys(), "it may come back"
    told = give_up(driver, 0)
    assert {one.sequence for one in told} == {long * 128, n * 128, n * 128 + 1}
    assert {(one.reason, one.error) for one in told} == {(FinishReason.ERROR, NO_PLACE)}
    driver.drain()
    driver.settle()
    assert driver.ended[short * 128] is FinishReason.LENGTH
    driver.check_nothing_left()
    assert driver.core.idle, "the drain ends"


def test_new_ones_are_refused_with_a_sentence_and_taken_when_it_is_back() -> None:
    driver = large_and_small()
    for end in (lambda: driver.lose(0), lambda: give_up(driver, 0)):
        end()
        refused = driver.rejected[driver.arrive(LONG, 30)]
        assert refused.kind == "not_ready" and refused.retry_after_s > 0.0
        assert "90 tokens" in refused.message and "a does not" in refused.message
        assert driver.rejected[driver.arrive([1] * 120, 8 + 33)].kind == "too_long"
    assert driver.arrive([1] * 4, 8) not in driver.rejected
    driver.ready(0, 40)
    driver.link_all()
    back = driver.arrive(LONG, 30)
    driver.settle()
    assert driver.ended[back * 128] is FinishReason.LENGTH
    driver.check_nothing_left()


def test_what_an_instance_that_still_loads_may_hold_waits_for_it() -> None:
    driver = Driver(configured("gittins", 2))
    driver.ready(0, 40)
    driver.lose(0)
    request = driver.arrive(LONG, 30)
    assert not give_up(driver, 0)
    driver.ready(1, 40)
    driver.settle()
    assert driver.ended[request * 128] is FinishReason.LENGTH


@pytest.mark.parametrize("holds", [40, 6])
def test_kv_that_lies_elsewhere_is_let_go_with_its_sequence(holds: int) -> None:
    """A prompt is computed where its answer does not fit, and the one that could hold it goes."""
    driver = Driver(configured("gittins", 3))
    for instance, num_blocks in ((0, 40), (1, 40), (2, holds)):
        driver.ready(instance, num_blocks)
    driver.link_all()
    driver.drain_one(1)
    requests = [driver.arrive([k, *LONG[1:]], 30) for k in range(2)]
    for _ in range(10):
        driver.answer(0)
    driver.resume_one(1)
    driver.flip(0, Role.PREFILL)
    driver.answer(0)
    driver.answer(0)
    driver.lose(1)
    driver.lose(0)
    told = give_up(driver, 1) + give_up(driver, 0)
    assert len(told) == (0 if holds == 40 else len(requests))
    driver.settle()
    assert not driver.alive
    driver.check_nothing_left()
