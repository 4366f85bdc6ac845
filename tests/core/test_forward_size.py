"""What a worker says of its target forward size, and which steps are filled up to it."""

import msgspec
import pytest

from daemon.core.actions import Submit
from daemon.core.checkpoint import checkpoint, restore
from daemon.core.core import Core
from daemon.core.events import WorkerReady
from tests.core.driver import Driver, configured

BUDGET, SIZE = 64, 24


def told(policy: str, size: int = SIZE, own: bool = True) -> Driver:
    """An instance whose worker has said its size; nobody wrote the step's budget where it is its
    `own`.
    """
    config = configured(policy, max_batch_tokens=BUDGET, prefill_chunk=BUDGET, prefix_cache=False)
    (one,) = config.instances
    one = msgspec.structs.replace(one, budget_is_own=own)
    driver = Driver(msgspec.structs.replace(config, instances=(one,)), 64)
    say(driver, size)
    return driver


def say(driver: Driver, size: int) -> None:
    """The same worker, empty as it is, says another size."""
    driver.handle(WorkerReady(driver.now, 0, 64, 1, 0.001, forward_tokens=size))


def first_step(driver: Driver) -> int:
    """Tokens of the first step of a long prompt."""
    driver.arrive([7] * 100, 4)
    steps = [one for actions in driver.actions for one in actions if isinstance(one, Submit)]
    return steps[-1].batch.num_tokens


@pytest.mark.parametrize(
    ("policy", "own", "tokens"),
    [
        ("synced", True, SIZE),
        ("synced-d", True, SIZE),
        ("synced", False, BUDGET),  # somebody wrote it
        ("sarathi", True, BUDGET),  # its steps are as long on any device
    ],
)
def test_prompts_fill_a_step_up_to_it_where_nobody_wrote_a_budget(
    policy: str, own: bool, tokens: int
) -> None:
    driver = told(policy, own=own)
    assert first_step(driver) == tokens
    assert driver.core.instances[0].status().batch_budget == tokens
    driver.settle()
    driver.check_nothing_left()


def test_a_worker_that_does_not_know_it_has_steps_as_other_policies_have() -> None:
    driver = told("synced", 0)
    assert driver.core.instances[0].step_tokens == BUDGET, "512 are more than it may have"


def test_the_next_worker_may_say_another_one() -> None:
    driver = told("synced")
    driver.lose(0)
    say(driver, 40)
    assert driver.core.instances[0].step_tokens == 40


def test_a_checkpoint_keeps_it() -> None:
    driver = told("synced")
    later = Core(driver.config)
    restore(later, checkpoint(driver.core, driver.now))
    assert later.instances[0].step_tokens == SIZE
