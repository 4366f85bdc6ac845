"""A sequence leaves its slot before the plan is made that brings its KV there."""

import pytest

from daemon.core.instance.instance import Instance
from daemon.state.request import sequence_id
from daemon.state.sequence import Sequence
from daemon.state.story import What
from tests.core.driver import Driver, configured


def small(swap: str, num_instances: int = 1) -> Driver:
    """A daemon of instances that can send to each other, whose copies take next to no time."""
    config = configured("sarathi", num_instances, swap=swap, prefix_cache=False)
    driver = Driver(config, 40, num_host_blocks=40, copy_block_s=1e-9, token_s=1e-4)
    driver.link_all()
    return driver


def of(driver: Driver, request: int, index: int = 0) -> tuple[Sequence, Instance]:
    """A sequence, and where it runs."""
    sequence = driver.core.sequences[sequence_id(request, index)]
    return sequence, driver.core.instances[sequence.instance]


def leave(driver: Driver, sequence: Sequence, why: str | None = What.OUT_OF_BLOCKS) -> None:
    """Have it give way now, as growth in a step would."""
    admission = driver.core.instances[sequence.instance].scheduler.admission
    admission.preempt(sequence.slot, why, driver.now)


def follower_leaves(driver: Driver) -> None:
    """A follower is forked from its leader, and gives way before the plan that copies a block."""
    request = driver.arrive([5] * 10, 12, n=2)
    driver.answer(0)
    follower, instance = of(driver, request, 1)
    assert follower.slot >= 0 and not follower.num_output_tokens
    leave(driver, follower, why=None)
    assert instance.scheduler.admission.try_admit(follower, driver.now) >= 0
    leave(driver, follower)


@pytest.mark.parametrize("swap", ["reactive", "proactive", "dynamic"])
@pytest.mark.parametrize("length", [13, 16, 18])
def test_who_gives_way_before_its_copies_come_back_keeps_what_the_host_has(
    swap: str, length: int
) -> None:
    driver = small(swap)
    request = driver.arrive([5] * length, 12)
    driver.arrive([6] * 9, 30)
    for _ in range(3):
        driver.answer()
    sequence, instance = of(driver, request)
    leave(driver, sequence)
    assert sequence.residence.host_blocks
    assert instance.scheduler.admission.try_admit(sequence, driver.now) >= 0
    leave(driver, sequence)
    assert sequence.residence.parked_tokens >= length // 4 * 4, "what is full stays"
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("swap", ["reactive", "proactive", "dynamic"])
def test_a_follower_that_gives_way_before_its_leaders_block_is_copied(swap: str) -> None:
    driver = small(swap)
    follower_leaves(driver)
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("swap", ["reactive", "proactive", "dynamic"])
def test_a_leader_leaves_though_its_follower_did_so_before_the_plan(swap: str) -> None:
    driver = small(swap, 2)
    follower_leaves(driver)
    driver.drain_one(0)
    driver.settle()
    assert not driver.alive
    driver.check_nothing_left()


def test_copies_are_awaited_though_the_swap_mode_changes_before_the_plan() -> None:
    driver = small("reactive")
    request = driver.arrive([5] * 18, 12)
    for _ in range(3):
        driver.answer()
    sequence, instance = of(driver, request)
    leave(driver, sequence)
    assert instance.scheduler.admission.try_admit(sequence, driver.now) >= 0
    instance.scheduler.residency.mode = "proactive"
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("swap", ["reactive", "proactive", "dynamic"])
def test_who_is_moved_before_its_copies_come_back_leaves_behind_them(swap: str) -> None:
    driver = small(swap, 2)
    request = driver.arrive([5] * 18, 12)
    for _ in range(3):
        driver.answer(0)
    sequence, instance = of(driver, request)
    leave(driver, sequence)
    assert instance.scheduler.admission.try_admit(sequence, driver.now) >= 0
    driver.move(sequence.id, 1)
    driver.settle()
    assert sequence.instance == 1
    assert sequence.recomputed_tokens == 1, "what the step computed as it gave way"
    driver.check_nothing_left()


def test_who_is_moved_while_its_copies_come_back_leaves_once_they_have() -> None:
    """No step of its own says so: nothing else runs there."""
    driver = small("proactive", 2)
    request = driver.arrive([5] * 18, 12)
    for _ in range(3):
        driver.answer(0)
    sequence, instance = of(driver, request)
    leave(driver, sequence)
    while driver.answer(0):
        pass
    assert instance.scheduler.residency.is_returning(sequence)
    driver.move(sequence.id, 1)
    driver.settle()
    assert not driver.alive, "it was never computed again"
    driver.check_nothing_left()
