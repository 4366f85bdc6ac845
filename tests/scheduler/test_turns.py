"""Who gets a turn and when: short prompts, those that starve, and places that nobody may lose."""

import pytest

from daemon.cost.step_time import StepTimeModel
from daemon.memory.kv_cache import NOTHING_CACHED, KVCache
from daemon.scheduler.policies.mlfq import Mlfq
from daemon.scheduler.policies.speculative import Speculative
from daemon.scheduler.residency import Residency
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.starvation import Starvation
from daemon.state.request import State
from daemon.state.sequence import Sequence
from tests.core.driver import Driver, configured
from tests.scheduler.test_mlfq import learned_step_time, sequence


@pytest.mark.parametrize("policy", ["mlfq", "speculative", "srtf"])
def test_a_short_prompt_does_not_wait_for_the_chunks_of_a_long_one(policy: str) -> None:
    config = configured(
        policy, max_len=4096, max_batch_tokens=32, prefill_chunk=32, prefix_cache=False
    )
    driver = Driver(config, 2000, num_host_blocks=4000)
    for number in range(6):
        driver.arrive([number] * 20, 3)
        driver.settle()
    driver.arrive([1] * 3000, 50)
    driver.answer()
    short = driver.arrive([2] * 4, 2)
    driver.predict(short, 2)
    steps = 0
    while not driver.num_outputs(128 * short):
        driver.answer()
        driver.copied()
        steps += 1
    assert steps <= 3


@pytest.mark.parametrize("policy", ["priority", "srtf", "speculative"])
def test_one_that_needs_the_whole_pool_gets_it_when_the_last_gave_way(policy: str) -> None:
    """Those that run keep a few blocks spare; when nobody runs any more, nobody needs them."""
    config = configured(
        policy, max_len=400, max_batch_tokens=512, prefill_chunk=512, swap="recompute"
    )
    driver = Driver(config, 100)
    small = driver.arrive([1] * 20, 300, priority=5)
    for _ in range(4):
        driver.answer()
    large = driver.arrive([1] * 20 + [2] * 378, 2, priority=-5)
    if policy != "priority":
        driver.predict(small, 300)
        driver.predict(large, 2)
    driver.settle()
    assert not driver.alive
    driver.check_nothing_left()


def test_nobody_gives_way_for_blocks_that_others_keep() -> None:
    """Five share 80 tokens with one that ranks before everybody: their places give few blocks."""
    config = configured(
        "priority", max_running=20, max_batch_tokens=128, prefill_chunk=128, max_len=240,
        swap="recompute",
    )  # fmt: skip
    driver = Driver(config, 60)
    shared = [1] * 80
    driver.arrive([*shared, 2, 2, 2, 2], 140, priority=-9)
    driver.answer()
    for number in range(5):
        driver.arrive([*shared, *[3 + number] * 5], 140, priority=5)
    for _ in range(3):
        driver.answer()
    driver.arrive([50] * 190, 5, priority=0)
    for _ in range(10):
        driver.answer()
    assert driver.core.counters.preemptions == 0
    driver.settle()
    driver.check_nothing_left()


def test_the_promoted_leave_most_of_the_memory_to_others() -> None:
    """Far more than can be served, all of it starving: whoever is new still gets a first token."""
    config = configured("mlfq", max_running=8, max_waiting=1000, starve_s=0.005, max_len=128)
    driver = Driver(config, 30, num_host_blocks=4000)
    for number in range(40):
        driver.arrive([number % 9] * 16, 60)
    scheduler = driver.core.instances[0].scheduler
    most = 0
    for _ in range(300):
        driver.answer()
        driver.copied()
        held = [
            one
            for one in scheduler.order.promoted
            if one.promoted and one.state is not State.FINISHED
        ]
        most = max(most, sum(scheduler.kv.blocks_for(one.num_known_tokens) for one in held))
    largest = scheduler.kv.blocks_for(16 + 60)
    assert 0 < most <= Mlfq.promoted_share * 30 + largest
    driver.settle()
    driver.check_nothing_left()


def test_a_storm_of_those_that_leave_is_not_remembered() -> None:
    starvation = Starvation(0)
    for number in range(5000):
        one = sequence(5, number)
        one.instance = 0
        starvation.watch(one, 1e9, 0)
        one.state = State.FINISHED
    assert len(starvation._due) < 200


def test_who_starves_first_is_looked_at_first() -> None:
    starvation = Starvation(0)
    ones = [sequence(5, number) for number in range(3)]
    for one, due_s in zip(ones, (3.0, 1.0, 2.0), strict=True):
        one.instance = 0
        starvation.watch(one, due_s, 3)
    assert starvation.first(0.5) is None
    assert starvation.first(9.0) is ones[1]
    ones[1].instance = 1
    assert starvation.first(9.0) is ones[2]
    ones[2].waiting_since_s = 4.0
    assert starvation.first(9.0) is ones[0]


def test_a_guess_below_what_it_has_is_no_guess() -> None:
    """Chosen, or predicted late, for one that is long already: it is not called nearly done."""
    policy, step_time, one = Speculative(), learned_step_time(), sequence(10)
    one.num_output_tokens = 300
    policy.enter(one, step_time)
    assert one.expected_tokens == 600
    one.expected_tokens = 20
    policy.on_prediction(one)
    assert one.expected_tokens == 600


def test_another_policy_forgets_what_this_one_guessed() -> None:
    driver = Driver(
        configured("speculative", max_running=1, max_len=4096, max_batch_tokens=64), 500
    )
    driver.arrive([1] * 10, 50)
    driver.arrive([1] * 10, 1500)
    driver.choose("srtf")
    assert [one.remaining_tokens for one in driver.core.sequences.values()][1] == 1500


def test_a_host_pool_too_small_for_a_victim_keeps_the_part_that_fits() -> None:
    kv, slots, residency = KVCache(200, 4, 8, 400, False), SlotTable(8), Residency("proactive")
    residency.reset([], 16, 1e-9)
    members: list[Sequence] = []
    for number, length in enumerate((20, 100)):
        one = sequence(length, number)
        one.rank = float(number)
        slot = slots.join(one, length)
        kv.allocate(slot, NOTHING_CACHED, length)
        one.move(State.RUNNING)
        residency.admit(one, kv, -1, 1, StepTimeModel(), 0.0)
        slots.delivered[slot] = slots.known[slot] = length + 1
        members.append(one)
    residency.park(members[1], 100, slots, kv, 1, lambda num_tokens: 1.0)
    assert members[1].residence.parked_tokens == 16 * 4
    assert residency.host_room() == 0
    residency.forget(members[1])
    residency.space.take_orders(1)
    residency.on_copied(kv, 1, 0.0, 16, 0.0, 0, 0.0)
    assert residency.host_room() == 16
