"""Fillers: what they have in common is enough for one that does not begin at the queue's head."""

import random

import pytest

from daemon.scheduler.fillers import FILLERS, Mixed, PromptsAlone
from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.step import StepBuilder
from daemon.wire.columns import Slots
from tests.core.driver import Driver, configured


class BestFit(Filler):
    """Decodes, and then whoever waits and leaves the fewest blocks unused."""

    in_order = False

    def before_prompts(self, decodes: Slots) -> Slots:
        """All of them."""
        return decodes

    def fill(self, step: StepBuilder, decodes: Slots, prompts: Slots, now: float) -> None:
        """Add rows."""
        self.decode(step, decodes, now)
        self.continue_prompts(step, prompts)
        admission = self.admission
        while step.budget > 0 and not self.slots.full and admission.may_join():
            plans = [(one, admission.plan(one)) for one in self.waiting]
            fitting = [
                (plan.num_new_blocks, one.arrival, one, plan)
                for one, plan in plans
                if admission.make_room(one, plan, now)
            ]
            if not fitting:
                return
            _, _, one, plan = max(fitting, key=lambda fits: fits[:2])
            count = step.chunk(one.num_known_tokens - plan.num_shared_tokens, one.prompt_cost)
            if not count:
                return
            slot = admission.admit(one, plan, now)
            if not admission.residency.is_returning(one):
                step.add_prompt(slot, count, 1)


def test_every_policy_names_a_filler_that_exists() -> None:
    assert {policy.filler for policy in POLICIES.values()} == FILLERS.keys()


def test_a_chosen_policy_brings_its_filler() -> None:
    driver = Driver(configured("sarathi"), 16)
    scheduler = driver.core.instances[0].scheduler
    assert type(scheduler.filler) is Mixed
    driver.choose("vllm")
    assert type(scheduler.filler) is PromptsAlone


def test_a_step_need_not_begin_at_the_head_of_the_queue() -> None:
    """One runs and holds most blocks; of three that wait the last one fits, the first does not."""
    driver = Driver(configured(prefix_cache=False), 16)
    scheduler = driver.core.instances[0].scheduler
    scheduler.filler = BestFit(scheduler.admission)
    driver.arrive([9] * 16, 20)
    driver.answer()
    for number, length in enumerate((60, 50, 20)):
        driver.arrive([number] * length, 3)
    driver.answer()
    assert scheduler.num_running == 2 and 3 * 128 in driver.started
    driver.settle()
    assert len(driver.ended) == 4


@pytest.mark.parametrize("policy", ["sarathi", "orca", "mlfq"])
def test_another_filler_keeps_the_laws(policy: str) -> None:
    """The Driver checks all of them, and every token, after every event."""
    for seed in range(6):
        chance = random.Random(seed)
        driver = Driver(configured(policy, depth=chance.randint(1, 2)), 24, num_host_blocks=40)
        scheduler = driver.core.instances[0].scheduler
        scheduler.filler = BestFit(scheduler.admission)
        for _ in range(60):
            if chance.random() < 0.4:
                prompt = [chance.randrange(3) for _ in range(chance.randint(1, 30))]
                driver.arrive(prompt, chance.randint(1, 20))
            driver.answer()
            driver.copied()
        driver.settle()
        driver.check_nothing_left()
