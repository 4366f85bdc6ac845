"""Priorities under the default policy: who goes first, and whose pauses stay short."""

import pytest

from daemon.config.schema import SchedulerConfig
from daemon.core.values.events import Reconfigured
from daemon.scheduler.pace import SLICE_SHARE
from daemon.state.request import FinishReason, State, sequence_id
from tests.core.driver import Driver, configured

DEFAULT = SchedulerConfig().policy
STEP_S, MAX_PAUSE_S = 0.01, 0.4
MOST_S = MAX_PAUSE_S + 3 * STEP_S
"""One step is in flight when the pause is over, one is planned then, and one answers."""


def busy(max_running: int, max_pause_s: float = MAX_PAUSE_S) -> Driver:
    """Few slots, and memory for all."""
    config = configured(DEFAULT, max_running=max_running, max_pause_s=max_pause_s, max_len=1024)
    return Driver(config, 600, step_s=STEP_S, num_host_blocks=600, copy_block_s=1e-6)


def arrive(driver: Driver, num_tokens: int, priority: int) -> int:
    """Its sequence; prompts have nothing in common."""
    prompt = [driver.requests] * 8
    return sequence_id(driver.arrive(prompt, num_tokens, priority=priority), 0)


class Watch:
    """The longest gap between two tokens of each of these sequences, from now on."""

    def __init__(self, driver: Driver, *sequences: int) -> None:
        self.driver = driver
        self.longest_s = dict.fromkeys(sequences, 0.0)
        self.last = {one: (driver.now, driver.num_outputs(one)) for one in sequences}

    def pass_by(self, seconds: float) -> None:
        """Let so much time pass, in steps."""
        driver = self.driver
        end_s = driver.now + seconds
        while driver.now < end_s:
            driver.copied()
            assert driver.answer(), "somebody always runs"
            for one, (since_s, num_tokens) in self.last.items():
                self.longest_s[one] = max(self.longest_s[one], driver.now - since_s)
                if driver.num_outputs(one) > num_tokens:
                    self.last[one] = driver.now, driver.num_outputs(one)


def test_a_better_priority_begins_first_though_it_came_later_and_costs_more() -> None:
    driver = busy(max_running=1)
    begun = arrive(driver, 500, priority=5)
    while not driver.num_outputs(begun):
        driver.answer()
    short = arrive(driver, 2, priority=5)
    better = arrive(driver, 60, priority=-5)
    slice_s = SLICE_SHARE * MAX_PAUSE_S
    watch = Watch(driver)
    watch.pass_by(slice_s - 5 * STEP_S)
    assert not driver.num_outputs(better), "nobody takes the place of one that is in its turn"
    watch.pass_by(10 * STEP_S)
    assert driver.core.sequences[begun].state is State.PREEMPTED
    assert driver.num_outputs(better) and not driver.num_outputs(short)
    driver.settle()
    assert set(driver.ended.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("max_running", [1, 3])
def test_who_has_begun_keeps_its_bound_while_better_ones_come_for_ever(max_running: int) -> None:
    driver = busy(max_running)
    begun = [arrive(driver, 450, priority=5) for _ in range(max_running)]
    while not all(driver.num_outputs(one) for one in begun):
        driver.answer()
    late = arrive(driver, 2, priority=5)
    watch = Watch(driver, *begun)
    for _ in range(60):  # more work comes than is done
        for _ in range(max_running):
            arrive(driver, 12, priority=-5)
        watch.pass_by(0.1)
    longest_s = watch.longest_s.values()
    assert min(longest_s) > 0.8 * MAX_PAUSE_S and max(longest_s) <= MOST_S
    assert not driver.num_outputs(late), "whoever has not begun waits"
    driver.settle(20_000)
    driver.check_nothing_left()


def test_a_shorter_bound_holds_at_once_also_for_who_pauses_already() -> None:
    driver = busy(max_running=1, max_pause_s=4.0)
    begun = arrive(driver, 900, priority=5)
    while not driver.num_outputs(begun):
        driver.answer()
    arrive(driver, 900, priority=-5)
    while driver.core.sequences[begun].state is not State.PREEMPTED:
        driver.answer()
    Watch(driver).pass_by(1.0)
    held = driver.num_outputs(begun)
    driver.handle(Reconfigured(driver.now, 1000, 0.3, MAX_PAUSE_S))
    assert driver.core.config.max_pause_s == MAX_PAUSE_S
    # The turn that the better one began under the longer bound goes on: half of four seconds. Then
    # the other's 208 tokens are computed again, 16 in a step.
    Watch(driver).pass_by(1.0 + 20 * STEP_S)
    assert driver.num_outputs(begun) > held
