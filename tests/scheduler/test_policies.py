"""What makes each policy what it is, seen in the batches it sends."""

import pytest

from daemon.core.values.actions import Submit
from daemon.state.batch import Batch
from tests.core.driver import Driver, configured

PROMPT = list(range(12))


def batches(driver: Driver) -> list[Batch]:
    return [a.batch for actions in driver.actions for a in actions if isinstance(a, Submit)]


def crowded(policy: str, num_blocks: int = 16) -> Driver:
    """Six sequences of 40 tokens at most: 60 blocks of 4, where there are 16."""
    driver = Driver(configured(policy), num_blocks)
    for number in range(6):
        driver.arrive([number, *PROMPT], 27)
    return driver


@pytest.mark.parametrize("token_s", [0.0, 0.001])
def test_a_young_instance_swaps_where_its_warm_up_says_that_prompts_cost(token_s: float) -> None:
    """What computing again costs is known before the first prompts have taught it."""
    config = configured("sarathi", swap="reactive", prefix_cache=False)
    driver = Driver(config, 16, num_host_blocks=64, token_s=token_s)
    for number in range(6):
        driver.arrive([number] * 16, 27)
    counters = driver.core.counters
    while not counters.preemptions:
        driver.answer()
    assert (counters.swaps_out > 0) == (token_s > 0)
    driver.settle()
    driver.check_nothing_left()


def test_vllm_never_mixes_prompts_with_decodes() -> None:
    driver = Driver(configured("vllm"), 64)
    for number in range(4):
        driver.arrive([number] * 20, 8)
        driver.answer()
        driver.answer()
    driver.settle()
    for batch in batches(driver):
        assert batch.fed.all() or not batch.fed.any()
    assert any(batch.fed.any() for batch in batches(driver)[1:]), "a later prompt went first"


def test_sarathi_never_stalls_a_decode() -> None:
    driver = Driver(configured("sarathi"), 64)
    driver.arrive(PROMPT, 20)
    driver.answer()
    for number in range(4):
        driver.arrive([number] * 50, 2)
    while 0 in driver.alive:
        before = driver.num_outputs(0)
        driver.answer()
        assert driver.num_outputs(0) == before + 1
    mixed = [batch for batch in batches(driver) if 0 < batch.fed.sum() < batch.fed.size]
    assert mixed and max(batch.num_tokens for batch in mixed) <= driver.config.max_batch_tokens


@pytest.mark.parametrize("policy", ["sarathi", "vllm", "priority"])
def test_exhaustion_preempts_and_the_answer_is_the_same(policy: str) -> None:
    driver = crowded(policy)
    driver.settle()  # the Driver compares every token with the sequence's truth
    assert driver.core.counters.preemptions > 0
    assert driver.core.counters.recomputed_tokens > 0
    assert all(driver.num_outputs(sequence) == 27 for sequence in driver.ended)
    driver.check_nothing_left()


@pytest.mark.parametrize("policy", ["orca", "static"])
def test_what_reserves_for_the_longest_answer_never_preempts(policy: str) -> None:
    driver = crowded(policy)
    driver.settle()
    assert driver.core.counters.preemptions == 0
    assert len(driver.ended) == 6


def test_static_lets_nobody_join_a_running_batch() -> None:
    driver = Driver(configured("static"), 64)
    driver.arrive(PROMPT, 12)
    driver.answer()
    driver.arrive([9, *PROMPT], 3)
    while 0 in driver.alive:
        assert driver.core.num_waiting == 1
        driver.answer()
    driver.settle()
    assert len(driver.ended) == 2


def test_a_static_batch_forms_over_several_prefills() -> None:
    """Prompts that do not fit one step's budget join it still, before anybody decodes."""
    driver = Driver(configured("static", max_batch_tokens=32), 200)
    for first in range(4):
        driver.arrive([first] * 30, 5)
    driver.settle()
    assert [batch.slots.size for batch in batches(driver)] == [1, 1, 1, 1, 4, 4, 4, 4]


def test_orca_prefills_whole_prompts() -> None:
    driver = Driver(configured("orca", prefill_chunk=4), 64)
    driver.arrive([1] * 30, 2)
    driver.arrive([2] * 30, 2)
    driver.settle()
    prompts = [int(c) for batch in batches(driver) for c in batch.counts.tolist() if c > 1]
    assert prompts == [30, 30], "neither in chunks of 4, nor in the 2 that the first one left"


def test_a_better_priority_displaces_a_worse_one() -> None:
    driver = Driver(configured("priority", max_running=1), 64)
    worse = driver.arrive(PROMPT, 10, priority=5)
    driver.answer()
    better = driver.arrive([7, *PROMPT], 3, priority=-5)
    driver.answer()
    assert driver.core.counters.preemptions == 1
    driver.settle()
    ended = [sequence // 128 for sequence in driver.ended]
    assert ended == [better, worse]


def test_an_equal_priority_waits_its_turn() -> None:
    driver = Driver(configured("priority", max_running=1), 64)
    driver.arrive(PROMPT, 10, priority=5)
    driver.answer()
    driver.arrive(PROMPT, 3, priority=5)
    driver.settle()
    assert driver.core.counters.preemptions == 0


def test_priority_orders_the_queue() -> None:
    driver = Driver(configured("priority", max_running=1), 64)
    for priority in (0, 3, 1, 2):
        driver.arrive([priority, *PROMPT], 1, priority=priority)
    driver.settle()
    assert [sequence // 128 for sequence in driver.ended] == [0, 2, 3, 1]


@pytest.mark.parametrize("policy", ["vllm", "sarathi"])
@pytest.mark.parametrize(("swap", "swapped"), [("", True), ("recompute", False)])
def test_first_come_first_served_swaps_unless_it_is_told_not_to(
    policy: str, swap: str, swapped: bool
) -> None:
    config = configured(policy, swap=swap, max_len=64)
    driver = Driver(config, 10, num_host_blocks=20, copy_block_s=1e-9, token_s=1.0)
    for number in range(3):
        driver.arrive([number] * 9, 24)
    driver.settle()
    counters = driver.core.counters
    assert counters.preemptions > 0
    assert bool(counters.swaps_out) is swapped


def test_nobody_is_preempted_for_blocks_that_are_on_their_way() -> None:
    """At depth 2 an aborted sequence's blocks stay fenced; its neighbour waits for them."""
    driver = Driver(configured("sarathi", depth=2, max_len=64), 10)
    first = driver.arrive([1] * 15, 20)
    driver.answer()
    second = driver.arrive([2] * 15, 4)
    driver.arrive([3] * 3, 4)
    while driver.core.instances[0].scheduler.kv.pool.num_available:
        driver.answer()
    preempted = driver.core.counters.preemptions
    driver.abort(second)
    pool = driver.core.instances[0].scheduler.kv.pool
    assert pool.num_fenced > 0
    while pool.num_fenced:
        assert driver.core.counters.preemptions == preempted
        driver.answer()
    driver.settle()
    assert driver.num_outputs(first * 128) == 20
