"""Policies that reserve room for the longest answer: when blocks are taken, who may give way."""

import pytest

from daemon.core.view.view import snapshot
from tests.core.driver import Driver, configured

RESERVING = ["orca", "static"]
PROMPT = list(range(13))


@pytest.mark.parametrize("policy", RESERVING)
def test_blocks_are_taken_as_tokens_come(policy: str) -> None:
    driver = Driver(configured(policy), 16)
    driver.arrive(PROMPT, 27)
    seen: list[tuple[int, int]] = []
    while driver.alive:
        (one,) = snapshot(driver.core, driver.now).instances
        seen.append((one.kv_held, one.kv_reserved))
        driver.answer()
    assert seen[0] == (4, 6), "four blocks of the prompt, and six more are kept"
    assert all(held + reserved == 10 for held, reserved in seen)
    assert seen == sorted(seen), "blocks only come"
    driver.check_nothing_left()
    assert snapshot(driver.core, driver.now).instances[0].kv_reserved == 0


@pytest.mark.parametrize("policy", RESERVING)
def test_room_that_is_reserved_is_given_to_nobody_else(policy: str) -> None:
    driver = Driver(configured(policy), 16)
    driver.arrive(PROMPT, 27)  # ten blocks at most
    driver.arrive([9, *PROMPT], 27)  # ten more, of which six are free
    kv = driver.core.instances[0].scheduler.kv
    assert kv.pool.num_available == 12 and kv.num_unreserved == 6
    assert driver.core.num_waiting == 1
    driver.settle()
    assert driver.core.counters.preemptions == 0
    driver.check_nothing_left()


def test_a_shared_prompt_is_reserved_once() -> None:
    driver = Driver(configured("orca"), 14)
    driver.arrive(PROMPT[:12], 12, n=3)  # six blocks each, of which two are shared
    while driver.core.num_running < 3:
        driver.answer()
    kv = driver.core.instances[0].scheduler.kv
    assert kv.pool.ledger().held + kv.reservations.num_unheld == 6 + 2 * 4
    driver.settle()
    assert driver.core.counters.preemptions == 0 and len(driver.ended) == 3


@pytest.mark.parametrize("policy", RESERVING)
def test_one_that_reserves_takes_over_more_than_fits(policy: str) -> None:
    """Three run that may need ten blocks each, of 26: two get a reservation, the third must give
    way, and nobody joins before everyone who runs has one.
    """
    driver = Driver(configured("sarathi", max_running=4), 26)
    for number in range(3):
        driver.arrive([number, *PROMPT[1:]], 27)
    for _ in range(3):
        driver.answer()
    first, second, third = driver.core.sequences.values()
    driver.choose(policy)
    reserved = driver.core.instances[0].scheduler.kv.reservations
    assert reserved.has(first.slot) and reserved.has(second.slot) and not reserved.has(third.slot)
    assert driver.core.instances[0].scheduler.kv.num_unreserved == 2
    short = driver.arrive([7], 1)  # one block
    while third.slot >= 0:
        assert short * 128 not in driver.started, "nobody joins before all that run have room"
        driver.answer()
    driver.settle()
    assert third.preemptions == 1 and not first.preemptions and not second.preemptions
    assert len(driver.ended) == 4
    driver.check_nothing_left()


def test_one_that_runs_gets_its_reservation_when_there_is_room() -> None:
    driver = Driver(configured("sarathi"), 22)
    for number, length in enumerate((27, 4, 27)):
        driver.arrive([number, *PROMPT[1:]], length)
    driver.answer()
    driver.choose("orca")
    third = list(driver.core.sequences.values())[2]
    scheduler = driver.core.instances[0].scheduler
    assert not scheduler.admission.all_reserved
    newcomer = driver.arrive([7] * 13, 27)
    while newcomer * 128 not in driver.started:
        assert not third.preemptions
        driver.answer()
    assert scheduler.admission.all_reserved
    driver.settle()
    assert driver.core.counters.preemptions == 0
    driver.check_nothing_left()


def test_one_that_does_not_reserve_gives_all_of_it_up() -> None:
    driver = Driver(configured("orca"), 16)
    driver.arrive(PROMPT, 27)
    driver.arrive([9, *PROMPT], 27)
    driver.answer()
    driver.choose("sarathi")
    scheduler = driver.core.instances[0].scheduler
    assert scheduler.kv.reservations.num_unheld == 0
    driver.answer()
    assert driver.core.num_running == 2, "there are blocks, and nobody keeps them"
    driver.settle()
    assert driver.core.counters.preemptions > 0 and len(driver.ended) == 2
    driver.check_nothing_left()
