"""Steps of decodes that a plan asks for several times: short ones, while nobody waits."""

from itertools import pairwise

import numpy as np
import pytest

from daemon.core.core import Core
from daemon.core.values.actions import Deliver, Submit
from daemon.core.values.events import StepDone
from daemon.core.view.checkpoint import Checkpoint, checkpoint, restore
from daemon.core.view.view import snapshot
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.steady_decode import AT_ONCE_S, FRAME_S
from daemon.state.pause import Cause
from daemon.state.request import FinishReason
from daemon.wire.columns import decoder, encoder, int32
from tests.core.driver import Driver, configured
from tests.core.test_steady_decode import calm_life
from tests.soak import tries

PROMPT = [1, 2, 3, 4, 5]


def driver_of(most_times: int = 8, step_s: float = 0.001, **changes: object) -> Driver:
    """A daemon whose worker computes so many steps as one, and answers them in their time."""
    config = configured(**{"block_size": 64, **changes})  # type: ignore[arg-type]
    return Driver(config, 64, step_s, most_times=most_times)


def in_the_middle(num_sequences: int) -> Driver:
    """Where the oldest plan of a daemon with so many answers asks for a step eight times."""
    driver = driver_of()
    for _ in range(num_sequences):
        driver.arrive(PROMPT, 60)
    for _ in range(3):
        driver.answer()
    assert driver.workers[0].pending[0].batch.times == 8
    return driver


def times(driver: Driver) -> list[int]:
    """Of every step that was planned."""
    actions = [action for actions in driver.actions for action in actions]
    return [action.batch.times for action in actions if isinstance(action, Submit)]


def test_a_lone_answer_takes_few_plans() -> None:
    driver = driver_of()
    driver.arrive(PROMPT, 60)
    driver.settle()
    assert driver.num_outputs(0) == 60 and driver.ended[0] is FinishReason.LENGTH
    assert max(times(driver)) == 8 and len(times(driver)) < 20
    driver.check_nothing_left()


@pytest.mark.parametrize(
    ("step_s", "most"), [(0.001, 8), (0.0045, 4), (0.009, 2), (0.0165, 2), (0.017, 1), (0.03, 1)]
)
def test_they_take_no_longer_together_than_a_common_step_or_two_frames(
    step_s: float, most: int
) -> None:
    driver = driver_of(step_s=step_s, max_len=200)
    driver.arrive(PROMPT, 100)
    driver.settle()
    assert max(times(driver)) == most
    assert most == 1 or most * step_s <= (2 * FRAME_S if most == 2 else AT_ONCE_S)


def test_no_pair_is_planned_where_drafts_are_offered() -> None:
    driver = driver_of(step_s=0.012, max_len=200)
    driver.arrive(PROMPT, 100)
    for _ in range(6):
        driver.answer()
    assert times(driver)[-1] == 2
    for _ in range(3):  # those that were planned before
        driver.answer(offers=(1,))
    planned = len(times(driver))
    for _ in range(5):
        driver.answer(offers=(1,))
    assert set(times(driver)[planned:]) == {1}
    for _ in range(6):
        driver.answer()
    assert times(driver)[-1] == 2
    driver.settle()
    driver.check_nothing_left()


def test_a_worker_that_computes_one_is_asked_for_one() -> None:
    driver = driver_of(most_times=1)
    driver.arrive(PROMPT, 60)
    driver.settle()
    assert set(times(driver)) == {1}


def test_no_block_is_taken_for_them() -> None:
    """One ends at its block's end, and the next begins with one block more."""
    driver = driver_of(block_size=4, max_len=60)
    driver.arrive(PROMPT, 40)
    table, held = driver.core.instances[0].scheduler.kv.table, []
    while driver.alive:
        held.append(int(table.held[0]))
        driver.answer()
    assert all(after - before <= 1 for before, after in pairwise(held)) and held[-1] == 11
    assert max(times(driver)) == 4


def test_nobody_who_waits_waits_for_them() -> None:
    driver = driver_of(max_running=1)
    driver.arrive(PROMPT, 40)
    for _ in range(3):
        driver.answer()
    driver.arrive(PROMPT, 4)
    planned = len(times(driver))
    while 0 in driver.alive:
        driver.answer()
    assert times(driver)[2] == 8 and set(times(driver)[planned:]) == {1}


def test_a_row_that_ends_among_them_ends_there() -> None:
    driver = in_the_middle(2)
    before = [driver.num_outputs(sequence) for sequence in (0, 128)]
    driver.answer(stops=frozenset({1}))
    drawn = [
        driver.num_outputs(sequence) - num for sequence, num in zip((0, 128), before, strict=True)
    ]
    assert drawn[0] == 8 > drawn[1] >= 1 and driver.ended[128] is FinishReason.STOP
    driver.settle()
    assert driver.num_outputs(0) == 60
    driver.check_nothing_left()


def test_a_row_that_fails_among_them_fails_alone() -> None:
    driver = in_the_middle(2)
    driver.answer(fails=frozenset({0}))
    assert driver.ended[0] is FinishReason.ERROR
    driver.settle()
    assert driver.num_outputs(128) == 60
    driver.check_nothing_left()


@pytest.mark.parametrize(
    ("counts", "reason", "said"),
    [
        ([], 0, "0 counts for 1 rows"),
        ([7], 0, "goes on with other than 8 tokens"),
        ([9], 0, "goes on with other than 8 tokens"),
        ([9], 1, "goes on with other than 8 tokens"),
        ([0], 1, "ends without a token"),
    ],
)
def test_counts_that_no_worker_may_answer(counts: list[int], reason: int, said: str) -> None:
    driver = in_the_middle(1)
    batch = driver.workers[0].pending[0].batch
    reasons = np.array([reason], np.uint8)
    with pytest.raises(ValueError, match=said):
        driver.core.handle(StepDone(driver.now, 0, batch.step, reasons, 0.008, int32(counts)))


def test_the_time_of_one_is_learned() -> None:
    driver = driver_of(step_s=0.002)
    driver.arrive(PROMPT, 100)
    driver.settle()
    assert driver.core.instances[0].step_time.mean_s == pytest.approx(0.002)
    assert driver.core.counters.computed_tokens == len(PROMPT) + 99


def test_a_budget_is_of_each_time() -> None:
    """What a view compares with it is one time's tokens."""
    driver = driver_of()
    driver.arrive(PROMPT, 60)
    for _ in range(4):
        driver.answer()
    status = snapshot(driver.core, driver.now).instances[0]
    assert driver.workers[0].pending[0].batch.times == 8
    assert status.batch_tokens == 1 and set(status.newest_tokens) == {1, len(PROMPT)}


def test_who_pauses_behind_a_prompt_does_not_pause_for_later_times() -> None:
    """A prompt of 90 ms is no pause, though the last of the tokens behind it came after 109."""
    driver = driver_of(step_s=0.0024, policy="vllm")
    driver.arrive(PROMPT, 60)
    for _ in range(3):
        driver.answer()
    driver.arrive([7] * 16, 60)
    while not driver.workers[0].pending[0].batch.counts.max() > 1:
        driver.answer()
    assert driver.workers[0].pending[0].batch.slots.size == 1
    driver.answer(step_s=0.09)
    assert driver.workers[0].pending[0].batch.times == 8
    driver.answer()
    assert driver.core.counters.pauses[Cause.BEHIND_PROMPT].count == 0


def test_tokens_of_one_answer_come_together() -> None:
    driver = driver_of()
    driver.arrive(PROMPT, 60)
    driver.settle()
    actions = [action for actions in driver.actions for action in actions]
    delivered = [action.sequences.size for action in actions if isinstance(action, Deliver)]
    assert delivered == times(driver)


def test_a_checkpoint_keeps_what_the_worker_said() -> None:
    driver = driver_of()
    driver.core.instances[0].same_until = (1, 4)
    written = encoder().encode(checkpoint(driver.core, driver.now))
    core = Core(driver.config)
    restore(core, decoder(Checkpoint).decode(written))
    scheduler = core.instances[0].scheduler
    assert scheduler.steady_decodes.most_times == 8 and scheduler.drafting.same_until == (1, 4)
    assert encoder().encode(checkpoint(core, driver.now)) == written


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_any_life_keeps_its_tokens(policy: str) -> None:
    """The driver's laws see to them."""
    lives = [calm_life(policy, seed, 2 + seed % 7) for seed in range(tries(1, 60))]
    assert any(max(times(one)) > 1 for one in lives)
