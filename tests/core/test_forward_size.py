"""What a worker says of its target forward size, and which steps are filled up to it."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.actions import Submit
from daemon.core.values.events import PolicyChosen, WorkerReady
from daemon.core.view.checkpoint import checkpoint, restore
from daemon.state.role import Role
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
        ("packed", True, SIZE),
        ("synced-d", True, SIZE),
        ("packed", False, BUDGET),  # somebody wrote it
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
    driver = told("packed", 0)
    assert driver.core.instances[0].step_tokens == BUDGET, "512 are more than it may have"


def test_the_next_worker_may_say_another_one() -> None:
    driver = told("packed")
    driver.lose(0)
    say(driver, 40)
    assert driver.core.instances[0].step_tokens == 40


@pytest.mark.parametrize("policy", ["packed", "gittins"])
def test_a_checkpoint_keeps_it(policy: str) -> None:
    driver = told(policy)
    later = Core(driver.config)
    restore(later, checkpoint(driver.core, driver.now))
    assert later.instances[0].forward_tokens == SIZE
    assert later.instances[0].step_tokens == driver.core.instances[0].step_tokens


@pytest.mark.parametrize(
    ("configured_as", "chosen", "tokens"),
    [("sarathi", "packed", SIZE), ("packed", "sarathi", BUDGET), ("packed", "synced-d", SIZE)],
)
def test_a_policy_that_is_chosen_while_it_runs_fills_steps_its_own_way(
    configured_as: str, chosen: str, tokens: int
) -> None:
    driver = told(configured_as)
    driver.handle(PolicyChosen(driver.now, chosen))
    assert first_step(driver) == tokens
    later = Core(driver.config)
    driver.settle()
    restore(later, checkpoint(driver.core, driver.now))
    assert later.instances[0].step_tokens == driver.core.instances[0].step_tokens
    driver.check_nothing_left()


def pair(
    policy: str = "sarathi", own_budget: bool = True, own_chunk: bool = True, size: int = 96
) -> Driver:
    """A prefill and a decode instance on devices of this size; steps have 32 tokens, prompts 16 of
    them.
    """
    config = configured(policy, 2, prefix_cache=False)
    instances = tuple(
        msgspec.structs.replace(
            instance, role=role, budget_is_own=own_budget, chunk_is_own=own_chunk
        )
        for instance, role in zip(config.instances, (Role.PREFILL, Role.DECODE), strict=True)
    )
    driver = Driver(msgspec.structs.replace(config, instances=instances))
    for index in range(2):
        driver.ready(index, 64, forward_tokens=size)
    driver.link_all()
    return driver


@pytest.mark.parametrize(
    ("policy", "own_budget", "own_chunk", "size", "tokens"),
    [
        ("sarathi", True, True, 96, 96),
        ("prompt_sjf", True, True, 24, 24),
        ("sarathi", True, False, 96, 16),  # somebody wrote the chunk
        ("sarathi", False, False, 96, 16),  # and the budget
        ("sarathi", True, True, 0, 16),  # nobody measured its device
        ("vllm", True, True, 96, 32),  # its prompts are not cut
    ],
)
def test_a_prefill_instance_computes_chunks_of_it(
    policy: str, own_budget: bool, own_chunk: bool, size: int, tokens: int
) -> None:
    driver = pair(policy, own_budget, own_chunk, size)
    assert first_step(driver) == tokens
    driver.settle()
    driver.check_nothing_left()


def test_windows_are_as_long_as_a_chunk_of_any_role_needs() -> None:
    driver = pair()
    for index in range(2):
        driver.lose(index)
    driver.windows = 0, 8
    for index in range(2):
        driver.ready(index, 128, forward_tokens=96)
    driver.link_all()
    assert first_step(driver) == 96
    driver.settle()
    driver.check_nothing_left()


def test_chunks_follow_the_role() -> None:
    driver = pair()
    prefill, decode = driver.core.instances
    assert prefill.step_tokens == 96 and decode.step_tokens == 32
    driver.flip(0, Role.MIXED)
    driver.flip(1, Role.PREFILL)
    assert prefill.step_tokens == 32 and decode.step_tokens == 96
    later = Core(driver.config)
    restore(later, checkpoint(driver.core, driver.now))
    assert [instance.step_tokens for instance in later.instances] == [32, 96]
