"""Streams that come back by being computed again, for longer than a turn: they still end."""

import pytest

from daemon.state.request import FinishReason
from tests.core.driver import Driver, configured


@pytest.mark.parametrize("max_running", [1, 2])
def test_streams_that_take_longer_than_a_turn_to_come_back_get_on(max_running: int) -> None:
    """A turn is 0.05 s, and 60 tokens are computed again in 0.08 s."""
    config = configured(
        "gittins",
        max_running=max_running,
        max_pause_s=0.1,
        prefill_chunk=8,
        max_batch_tokens=8 * max_running,
        prefix_cache=False,
        swap="recompute",
    )
    driver = Driver(config, 100, step_s=0.01)
    better, num_begun = -1, max_running
    for number in range(num_begun):
        driver.arrive([number] * 60, 60)
    while len(driver.started) < num_begun or not all(map(driver.num_outputs, driver.alive)):
        driver.answer()
    for number in range(num_begun):  # they displace those, which come back when they are due
        driver.arrive([10 + number] * 60, 60, priority=better)
    driver.settle(3000)
    assert list(driver.ended.values()) == [FinishReason.LENGTH] * 2 * num_begun
