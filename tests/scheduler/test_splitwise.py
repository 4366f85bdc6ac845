"""Splitwise's mixed instance: prompts first, and no decode waits for more than so many steps."""

from dataclasses import replace

import pytest

from daemon.scheduler.fillers.prompts_first import MOST_PASSED
from daemon.scheduler.headroom import Headroom
from tests.core.driver import Driver, configured


def longest_waits(num_decodes: int, budget: int, **changes: object) -> list[int]:
    """The most steps in which each of some decodes was passed over, while prompts that fill the
    whole budget come with every step.
    """
    slots = num_decodes + 2
    config = configured("splitwise", max_batch_tokens=budget, max_running=slots, **changes)
    driver = Driver(config, 400)
    first = [driver.arrive([number] * 3, 60) * 128 for number in range(num_decodes)]
    while any(driver.num_outputs(one) < 2 for one in first):
        driver.answer()
    had, waits, longest = dict.fromkeys(first, 0), dict.fromkeys(first, 0), dict.fromkeys(first, 0)
    for step in range(40):
        driver.arrive([100 + step] * budget, 1)
        driver.answer()
        for one in first:
            passed = driver.num_outputs(one) == had[one]
            waits[one] = waits[one] + 1 if passed else 0
            longest[one] = max(longest[one], waits[one])
            had[one] = driver.num_outputs(one)
    driver.settle()
    driver.check_nothing_left()
    return [longest[one] for one in first]


@pytest.mark.parametrize("depth", [1, 2])
def test_no_decode_waits_for_more_steps_than_the_bound(depth: int) -> None:
    assert longest_waits(6, 32, depth=depth) == [MOST_PASSED] * 6, "and prompts go first until then"


def test_where_the_budget_is_smaller_than_those_that_run_they_go_round() -> None:
    """Nine decodes, four tokens a step: three steps to go round."""
    assert max(longest_waits(9, 4)) <= MOST_PASSED + 2


def test_decodes_have_what_prompts_leave() -> None:
    driver = Driver(configured("splitwise"), 64)
    decode = driver.arrive([1, 2, 3], 20) * 128
    driver.answer()
    for number in range(4):
        driver.arrive([number] * 20, 1)  # one of them fits the budget of 32, two do not
        had = driver.num_outputs(decode)
        driver.answer()
        driver.answer()
        assert driver.num_outputs(decode) == had + 2
    driver.settle()


def test_headroom_reckons_with_the_decodes_that_go_first_alone() -> None:
    driver = Driver(configured("splitwise"), 64)
    driver.arrive([1, 2, 3], 40)
    driver.answer()
    scheduler = driver.core.instances[0].scheduler
    assert Headroom(scheduler)._budget == 32, "a decode that can wait leaves a prompt all of it"
    for number in range(MOST_PASSED):
        driver.arrive([50 + number] * 32, 2)
        driver.answer()
    scheduler.limits = replace(scheduler.limits, max_batch_tokens=64)
    assert Headroom(scheduler)._budget == 64 - 1
    driver.settle()


def test_decodes_have_their_blocks_before_prompts_take_the_last_ones() -> None:
    """Three need a block at the same step; four are left, which a prompt of three would fit."""
    driver = Driver(configured("splitwise", prefix_cache=False))
    driver.lose(0)
    for number in range(3):
        driver.arrive([number] * 7, 4)
    driver.ready(0, 10)
    driver.answer()
    newcomer = driver.arrive([9] * 9, 1)
    for _ in range(3):
        driver.answer()
        assert not driver.core.counters.preemptions
    driver.settle()
    assert newcomer * 128 in driver.ended
    assert not driver.core.counters.preemptions
    driver.check_nothing_left()
