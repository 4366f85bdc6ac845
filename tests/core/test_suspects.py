"""Requests that kill their worker: found by running suspects alone, and nobody else is harmed."""

import pytest

from daemon.scheduler.policies import POLICIES
from daemon.scheduler.suspects import DEADLY
from daemon.state.request import FinishReason, request_of
from tests.core.driver import Driver, configured
from tests.soak import dealt

NUM_BLOCKS = 80


def deadly_step(driver: Driver, instance: int, deadly: set[int]) -> bool:
    """Whether the step that the instance's worker computes names one of these requests."""
    pending = driver.workers[instance].pending
    if not pending:
        return False
    residences = set().union(*pending[0].named.values())
    return any(request_of(sequence) in deadly for sequence, _ in residences)


def run(driver: Driver, deadly: set[int], num_blocks: int = NUM_BLOCKS) -> int:
    """Answer steps until everything has ended; how many workers died of the deadly requests."""
    deaths = 0
    for _ in range(5000):
        busy = False
        for instance in list(driver.workers):
            if deadly_step(driver, instance, deadly):
                driver.lose(instance, blamed=True)
                driver.ready(instance, num_blocks)
                deaths, busy = deaths + 1, True
            else:
                busy |= driver.answer(instance) or driver.copied(instance)
        if not busy:
            driver.check_nothing_left()
            return deaths
        driver.tick()
    raise AssertionError("the Core never comes to rest")


@pytest.mark.parametrize(("policy", "depth"), dealt(sorted(POLICIES), [1, 2]))
def test_two_deaths_end_the_deadly_request_and_no_other(policy: str, depth: int) -> None:
    config = configured(policy, depth=depth, max_running=6)
    driver = Driver(config, NUM_BLOCKS, num_host_blocks=20)
    for number in range(3):
        driver.arrive([number] * 20, 12)
    driver.answer()
    poison = driver.arrive([7] * 30, 10)
    for number in range(3):
        driver.arrive([number] * 9, 12)
    assert run(driver, {poison}) == 2
    ended = {request_of(sequence): reason for sequence, reason in driver.ended.items()}
    assert ended.pop(poison) is FinishReason.ERROR
    assert set(ended.values()) == {FinishReason.LENGTH} and len(ended) == 6
    assert driver.core.counters.failed == 1
    assert not driver.core.draining and driver.core.counters.worker_deaths == 2
    (told,) = (a for actions in driver.actions for a in actions if getattr(a, "error", ""))
    assert told.error == DEADLY


def test_all_streams_of_a_deadly_request_end() -> None:
    driver = Driver(configured(), NUM_BLOCKS)
    other = driver.arrive([1] * 10, 20)
    poison = driver.arrive([2] * 10, 20, n=4)
    assert run(driver, {poison}) == 2
    assert driver.core.counters.failed == 4
    assert sum(reason is FinishReason.ERROR for reason in driver.ended.values()) == 4
    assert {request_of(s) for s, r in driver.ended.items() if r is FinishReason.LENGTH} == {other}


def test_a_survivor_tries_the_suspects_alone_too() -> None:
    driver = Driver(configured(instances=2, max_running=4), NUM_BLOCKS)
    for number in range(4):
        driver.arrive([number] * 10, 15)
    poison = driver.arrive([9] * 10, 15)
    for _ in range(40):
        dying = [i for i in driver.workers if deadly_step(driver, i, {poison})]
        for instance in dying:
            driver.lose(instance, blamed=True)  # and no successor
        for instance in list(driver.workers):
            driver.answer(instance)
        if len(driver.workers) < 2:
            break
    driver.tick()
    assert len(driver.workers) == 1
    assert run(driver, {poison}) == 1
    assert driver.core.counters.failed == 1 and driver.core.counters.finished == 4


def test_a_worker_killed_from_outside_makes_nobody_a_suspect() -> None:
    driver = Driver(configured(), NUM_BLOCKS)
    for number in range(5):
        driver.arrive([number] * 10, 30)
    for _ in range(20):
        driver.answer()
        driver.lose(0)
        assert not driver.core.instances[0].scheduler.suspects
        driver.ready(0, NUM_BLOCKS)
    assert run(driver, set()) == 0
    assert set(driver.ended.values()) == {FinishReason.LENGTH}


def test_suspects_are_tried_one_after_the_other_and_may_leave_before() -> None:
    driver = Driver(configured(depth=2, prefill_chunk=4), NUM_BLOCKS)
    first, second, third = (driver.arrive([number] * 10, 30) for number in range(3))
    driver.answer()
    driver.answer()
    driver.lose(0, blamed=True)
    suspects = driver.core.instances[0].scheduler.suspects
    assert len(suspects) == 3
    driver.ready(0, NUM_BLOCKS)
    driver.arrive([5] * 10, 30)
    seen: list[int] = []
    while suspects:
        (step,) = driver.workers[0].pending
        (slot,) = step.batch.slots.tolist()
        request = request_of(driver.workers[0].sequence[slot])
        if seen[-1:] != [request]:
            seen.append(request)
        if request == second:
            driver.abort(second)
        driver.answer()
    assert seen == [first, second, third]
    assert run(driver, set()) == 0
    assert driver.core.counters.failed == 0 and driver.core.counters.finished == 3


@pytest.mark.parametrize("num_blocks", [14, 20])
def test_where_memory_is_short_the_others_make_room(num_blocks: int) -> None:
    driver = Driver(configured(max_len=48, depth=2), num_blocks, num_host_blocks=8)
    for number in range(4):
        driver.arrive([number] * 12, 20)
    poison = driver.arrive([9] * 12, 20)
    assert run(driver, {poison}, num_blocks) == 2
    assert driver.core.counters.finished == 4 and driver.core.counters.failed == 1
