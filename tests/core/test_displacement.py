"""Who gives way, and to whom, while steps are in flight: nobody for blocks that come anyway."""

import random

import pytest

from daemon.state.request import State, sequence_id
from daemon.state.story import What
from tests.core.driver import Driver, configured
from tests.soak import dealt

BLOCK = 16
SHORT, URGENT = 48, 1500  # tokens of prompts


def crowd(depth: int, swap: str = "") -> Driver:
    """120 blocks, nearly all in use, by answers of which one ends in each step: it says so itself,
    and the steps in flight still name its blocks.
    """
    config = configured(
        "priority",
        block_size=BLOCK,
        depth=depth,
        max_running=40,
        max_batch_tokens=2048,
        prefill_chunk=2048,
        max_len=4096,
        prefix_cache=False,
        swap=swap,
    )
    driver = Driver(config, 120, num_host_blocks=480)
    for number in range(28):
        driver.arrive([number] * SHORT, 100, priority=5)
    for _ in range(3):
        step(driver, ends=True)
    return driver


def step(driver: Driver, ends: bool = False) -> None:
    """The oldest step answers, and the next is planned as far ahead as the depth allows; a row
    ends that no step before it has ended.
    """
    row = 5 * (driver.workers[0].pending[0].batch.step % 3)
    driver.answer(stops=frozenset({row}) if ends else frozenset())
    driver.copied()
    for _ in range(3):
        driver.tick()


def steps_until_seated(driver: Driver, sequence: int, most: int = 60) -> int:
    for count in range(most):
        if driver.core.sequences[sequence].state is State.RUNNING:
            return count
        step(driver, ends=True)
    raise AssertionError("never seated")


@pytest.mark.parametrize("swap", ["recompute", "proactive", "dynamic", "reactive"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_urgent_prompt_is_seated_as_soon_as_the_steps_in_flight_let_go(
    depth: int, swap: str
) -> None:
    driver = crowd(depth, swap)
    urgent = sequence_id(driver.arrive([99] * URGENT, 4, priority=-5), 0)
    assert steps_until_seated(driver, urgent) <= 2 * depth
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_give_way_than_have_to(depth: int) -> None:
    """Each victim counts once, though its blocks are fenced for some steps more."""
    driver = crowd(depth, "recompute")
    pool = driver.core.instances[0].scheduler.kv.pool
    num_tokens = BLOCK * (pool.num_available + pool.num_fenced + 20)
    urgent = sequence_id(driver.arrive([99] * num_tokens, 4, priority=-5), 0)
    steps_until_seated(driver, urgent)
    everybody = (*driver.core.sequences.values(), *driver.core.ended)
    gave = [one for one in everybody if What.GAVE_WAY in [mark[1] for mark in one.story.marks]]
    smallest, spare = -(-SHORT // BLOCK), 1
    assert 0 < len(gave) <= -(-(20 + spare) // smallest)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("depth", [2, 3])
def test_nobody_gives_way_for_what_comes_anyway(depth: int, full: bool) -> None:
    """A long one's last token is on its way: its slot and what it holds are enough."""
    config = configured(
        "priority", depth=depth, max_batch_tokens=512, prefill_chunk=512, max_len=512,
        prefix_cache=False, max_running=2 if full else 8,
    )  # fmt: skip
    driver = Driver(config, 200 if full else 60)
    driver.arrive([1] * 120, 2, priority=5)  # 31 blocks
    driver.arrive([2] * 60, 60, priority=9)  # 16 blocks
    driver.tick()
    urgent = sequence_id(driver.arrive([3] * 100, 4, priority=-5), 0)
    slots = driver.core.instances[0].scheduler.slots
    assert slots.leaving().tolist() == [driver.core.sequences[0].slot]
    assert steps_until_seated(driver, urgent) <= depth
    assert driver.core.counters.preemptions == 0
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("depth", [2, 3])
def test_one_block_on_its_way_does_not_stall_every_decode(depth: int) -> None:
    """All lack a block at once, and few come: the others get theirs from the last in order."""
    config = configured(
        block_size=BLOCK, depth=depth, max_running=40, max_batch_tokens=2048,
        prefill_chunk=2048, prefix_cache=False,
    )  # fmt: skip
    driver = Driver(config, 120)
    for number in range(40):
        driver.arrive([number] * 46, 60)  # three blocks each, full after two tokens
    stalled = 0
    for _ in range(16):
        step(driver, ends=True)
        decodes = driver.workers[0].pending[-1].batch.slots.size
        stalled += 2 * decodes < driver.core.num_running
    assert stalled <= 2, "steps that most of those who run had to let pass"
    assert driver.core.counters.preemptions > 0
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize(
    ("policy", "depth"), dealt(["priority", "srtf", "mlfq", "speculative"], [1, 2, 3])
)
def test_no_livelock_where_the_urgent_follow_each_other(policy: str, depth: int) -> None:
    """Every step somebody more urgent comes; all of them end, and the last in order too."""
    chance = random.Random(depth)
    config = configured(
        policy, depth=depth, max_running=6, max_batch_tokens=64, prefill_chunk=64, starve_s=0.005,
        swap="recompute" if depth == 2 else "proactive",
    )  # fmt: skip
    driver = Driver(config, 34, num_host_blocks=30)
    for number in range(16):
        length, answer = chance.randint(1, 90), chance.randint(1, 30)
        request = driver.arrive([number] * length, answer, priority=-number)
        if policy in ("srtf", "speculative"):
            driver.predict(request, 16 - number)
        step(driver)
    driver.settle(2000)
    assert not driver.alive
    driver.check_nothing_left()
