"""A token budget that an operator chooses while requests run."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.actions import Submit
from daemon.core.view.checkpoint import checkpoint, restore
from daemon.state.role import Role
from tests.core.driver import Driver, configured
from tests.core.test_forward_size import BUDGET, SIZE, first_step, told


def batches(driver: Driver) -> list[int]:
    """The tokens of all steps so far."""
    steps = [one for actions in driver.actions for one in actions if isinstance(one, Submit)]
    return [step.batch.num_tokens for step in steps]


@pytest.mark.parametrize("policy", ["sarathi", "gittins", "vllm"])
def test_steps_have_no_more_tokens_than_were_chosen(policy: str) -> None:
    driver = Driver(configured(policy, max_batch_tokens=64, prefill_chunk=64), 64)
    driver.ready(0, 64)
    driver.choose_budget(8)
    for number in range(3):
        driver.arrive([number] * 20, 6)
    driver.settle()
    assert max(batches(driver)) == 8
    driver.choose_budget(0)
    driver.arrive([9] * 50, 2)
    driver.settle()
    assert max(batches(driver)) == 50
    driver.check_nothing_left()


def test_decodes_take_turns_in_a_budget_that_is_smaller_than_they_are_many() -> None:
    """Those that decode steadily no less than those of a step that was decided."""
    driver = Driver(configured("sarathi", max_batch_tokens=64, max_running=8), 64)
    driver.ready(0, 64)
    for number in range(6):
        driver.arrive([number] * 4, 40)
    for _ in range(12):
        driver.answer(0)
    assert batches(driver)[-1] == 6
    driver.choose_budget(4)
    before = len(batches(driver))
    driver.settle()
    assert max(batches(driver)[before + 1 :]) == 4  # one was planned already
    driver.check_nothing_left()


def test_a_choice_is_filled_whatever_the_size_of_the_device_is() -> None:
    driver = told("packed")
    assert driver.core.instances[0].step_tokens == SIZE
    driver.choose_budget(48)
    assert first_step(driver) == 48 > SIZE
    driver.choose_budget(2 * BUDGET)  # the worker has memory for no more than is configured
    assert driver.core.instances[0].step_tokens == BUDGET
    driver.choose_budget(0)
    assert driver.core.instances[0].step_tokens == SIZE


def test_it_stays_under_another_policy_role_and_worker_and_in_a_checkpoint() -> None:
    driver = told("packed")
    driver.choose_budget(16)
    driver.choose("sarathi")
    driver.core.instances[0].give_role(Role.PREFILL)
    driver.lose(0)
    driver.ready(0, 64)
    assert driver.core.instances[0].step_tokens == 16
    later = Core(driver.config)
    restore(later, checkpoint(driver.core, driver.now))
    assert later.instances[0].step_tokens == 16
    assert later.instances[0].status().chosen_budget == 16


def test_one_instance_may_have_its_own() -> None:
    config = configured("sarathi", 2, max_batch_tokens=64)
    driver = Driver(msgspec.structs.replace(config), 64)
    driver.choose_budget(16, 1)
    assert [one.step_tokens for one in driver.core.instances] == [64, 16]
