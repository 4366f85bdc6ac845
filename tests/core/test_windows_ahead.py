"""Where layers have windows: pages of full layers go ahead, those of the last window at the end.

The driver's workers check every token, so what came ahead is what was computed.
"""

import random

import msgspec
import pytest

from daemon.core.values.actions import Send
from daemon.state.role import Role
from tests.core.driver import Driver, configured

WINDOWS = [(0, 8, 8), (0, 0, 8), (9,)]
BLOCK_SIZE = 4


def full_pages(windows: tuple[int, ...], num_blocks: int) -> int:
    return windows.count(0) * num_blocks


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("policy", ["mlfq", "speculative"])
def test_what_was_uploaded_ahead_is_gone_on_with(policy: str, windows: tuple[int, ...]) -> None:
    config = configured(
        policy, max_running=2, swap="proactive", max_len=96, max_batch_tokens=40, starve_s=10.0
    )
    num_blocks, chance = 60 * len(windows), random.Random(3)
    driver = Driver(config, num_blocks, 0.03, 400, 1e-6, token_s=1e-3, windows=windows)
    for _ in range(10):
        prompt = [chance.randrange(3) for _ in range(chance.randint(4, 40))]
        driver.arrive(prompt, chance.randint(4, 40))
        for _ in range(6):
            driver.answer()
            driver.copied()
    driver.settle()
    driver.check_nothing_left()
    swaps = driver.core.instances[0].scheduler.swap_stats()
    assert swaps.num_ahead_used > 0


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_prompts_full_pages_go_ahead_of_its_answer(windows: tuple[int, ...]) -> None:
    """The first six blocks of 25 tokens go while chunks are computed, of full layers alone."""
    config = configured(instances=2, max_len=96, max_batch_tokens=8, prefill_chunk=8)
    prefills, decodes = config.instances
    instances = (
        msgspec.structs.replace(prefills, role=Role.PREFILL),
        msgspec.structs.replace(decodes, role=Role.DECODE),
    )
    config = msgspec.structs.replace(config, instances=instances)
    driver = Driver(config, 60 * len(windows), windows=windows)
    driver.link_all()
    driver.arrive([7] * 25, 6)
    driver.settle()
    driver.check_nothing_left()
    sent = [action for actions in driver.actions for action in actions if isinstance(action, Send)]
    *ahead, rest = sent
    assert sum(send.blocks.size for send in ahead) == full_pages(windows, 6)
    assert all(send.num_tokens == BLOCK_SIZE * send.blocks.size for send in ahead)
    kv = driver.core.instances[1].kv
    assert rest.blocks.size == kv.num_to_move(25) - full_pages(windows, 6)
    assert rest.num_groups == len(windows) and rest.num_tokens % BLOCK_SIZE == len(windows)
    assert driver.core.counters.recomputed_tokens == 0
    assert driver.core.counters.handoffs == 1


def test_a_full_page_that_is_copied_out_is_not_copied_again() -> None:
    """Copied ahead under pressure, kept as the sequence comes back, and right the next time."""
    windows = (0, 8)
    config = configured(
        "mlfq", max_running=3, swap="proactive", max_len=96, max_batch_tokens=40, starve_s=10.0
    )
    driver = Driver(config, 50, 0.03, 400, 1e-6, token_s=1e-3, windows=windows)
    for number in range(4):
        driver.arrive([number] * 30, 40)
    copied = 0
    while driver.alive and driver.answer():
        driver.copied()
        scheduler = driver.core.instances[0].scheduler
        for sequence in scheduler.running.sequences:
            copied = max(copied, len(sequence.residence.host_blocks))
    driver.settle()
    driver.check_nothing_left()
    assert copied > 0 and driver.core.counters.swaps_in > 0
