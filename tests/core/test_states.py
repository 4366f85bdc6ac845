"""Sequences with recurrent states: pages that are theirs alone, and are never cut back."""

import pytest

from tests.core.driver import Driver, configured

PROMPT = [(7 * i) % 11 for i in range(30)]


def test_a_sequence_holds_its_states_from_its_first_token_to_its_end() -> None:
    driver = Driver(configured(max_len=64), 40, windows=(0,), state_pages=3)
    kv = driver.core.instances[0].kv
    driver.arrive(PROMPT[:9], 8)
    driver.arrive(PROMPT[:4], 3)
    driver.answer()
    assert kv.pool.num_held == (3 + 3) + (1 + 3)
    assert [kv.blocks_for(tokens) for tokens in (0, 1, 9)] == [0, 4, 6]
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("swap", ["recompute", "reactive"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_sequence_goes_on_from_its_own_state(swap: str, depth: int) -> None:
    """The worker says where a row goes on from the state of other tokens."""
    config = configured(max_len=64, swap=swap, depth=depth, max_running=3)
    driver = Driver(config, 24, 0.001, 40, 1e-6, token_s=1e-3, windows=(0,), state_pages=3)
    for first in range(3):
        driver.arrive(PROMPT[first : first + 12], 24)
    driver.settle()
    counters = driver.core.counters
    assert counters.preemptions > 0
    assert (counters.swaps_out > 0) == (swap == "reactive")
    driver.check_nothing_left()


@pytest.mark.parametrize("depth", [1, 2])
def test_who_gives_way_is_not_computed_again(depth: int) -> None:
    """Its states are those of tokens in flight, and cannot be cut back: it leaves behind them."""
    config = configured(max_len=64, swap="proactive", depth=depth, max_running=3)
    driver = Driver(config, 24, 0.001, 90, 1e-6, token_s=1e-3, windows=(0,), state_pages=3)
    for first in range(3):
        driver.arrive(PROMPT[first : first + 12], 24)
    driver.settle()
    counters = driver.core.counters
    assert counters.preemptions == counters.swaps_out > 0
    assert counters.recomputed_tokens == 0
    driver.check_nothing_left()


def test_a_model_of_states_alone_holds_no_more_for_longer_sequences() -> None:
    driver = Driver(configured(max_len=64), 9, windows=(), state_pages=3)
    kv = driver.core.instances[0].kv
    assert (kv.capacity_tokens, kv.pool_tokens) == (64, 3 * 64)
    for _ in range(4):
        driver.arrive(PROMPT, 30)
    driver.answer()
    driver.answer()
    assert driver.core.num_running == 3
    driver.settle()
    driver.check_nothing_left()
