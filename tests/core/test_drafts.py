"""Drafts in lives of every kind: every token in its place, whatever is accepted."""

import random

import pytest

from daemon.core.core import Core
from daemon.scheduler.policies import POLICIES
from tests.core import drafting
from tests.core.driver import Driver, configured
from tests.soak import tries


def lively(policy: str, swap: str, seed: int) -> Driver:
    """A small life in which rows are offered drafts; some are drawn."""
    chance = random.Random(f"{policy} {swap} {seed}")
    changes = {"depth": chance.choice([1, 2]), "prefix_cache": chance.random() < 0.5}
    instances = chance.choice([1, 1, 2])
    config = configured(policy, instances, swap=swap, max_running=6, **changes)
    driver = Driver(config, 24, num_host_blocks=40, copy_block_s=1e-6, token_s=1e-3)
    for _ in range(80):
        if chance.random() < 0.3:
            prompt = [chance.randrange(2) for _ in range(chance.randint(1, 30))]
            driver.arrive(prompt, chance.randint(1, 30), chance.choice([1, 1, 2]))
        for instance in range(instances):
            stops = frozenset({chance.randrange(12)})
            drafting.answer(driver, instance, chance.choice, stops)
        what = chance.random()
        if what < 0.4:
            driver.tick()
        elif what < 0.7:
            driver.copied(chance.randrange(instances))
        elif what < 0.8 and driver.alive:
            driver.seal(chance.choice(sorted(driver.alive)))
        elif what < 0.83 and driver.alive:
            driver.finish(chance.choice(sorted(driver.alive)))
        elif what < 0.85:
            driver.lose(0, blamed=chance.random() < 0.5)
            driver.ready(0, 24)
    driver.settle()
    driver.check_nothing_left()
    return driver


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_token_in_its_place(policy: str) -> None:
    """The Driver compares every token with the sequence's truth, and each KV it attends to."""
    modes = ("recompute", "reactive", "proactive", "dynamic")
    first = sum(policy.encode())  # few lives: other modes, whatever other policies there are
    lives = [lively(policy, modes[(first + seed) % 3], seed) for seed in range(tries(2, 60))]
    assert sum(one.core.counters.drafts for one in lives)
    assert sum(one.core.counters.accepted_tokens for one in lives)
    again = Core(lives[0].config)
    assert [again.handle(event) for event in lives[0].events].__repr__() == repr(lives[0].actions)
