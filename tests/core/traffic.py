"""Seeded lives of a small daemon: every kind of event, in a random order."""

import random

from daemon.memory.swap_space import SWAP_MODES
from daemon.scheduler.policies import POLICIES
from tests.core.driver import Driver, configured


def random_prompt(chance: random.Random) -> list[int]:
    """One of a few beginnings, cut somewhere, and an end of its own."""
    family = chance.randrange(3)
    shared = [(7 * family + i // 5) % 11 for i in range(chance.randint(0, 40))]
    return shared + [chance.randrange(3) for _ in range(chance.randint(1, 8))]


def random_driver(chance: random.Random) -> Driver:
    """A daemon of one or two instances with little memory."""
    config = configured(
        chance.choice(sorted(POLICIES)),
        chance.randint(1, 2),
        depth=chance.randint(0, 3),
        max_running=chance.randint(1, 6),
        max_batch_tokens=chance.randint(4, 40),
        prefill_chunk=chance.randint(1, 20),
        max_waiting=chance.randint(1, 12),
        prefix_cache=chance.random() < 0.8,
        max_len=96,
        swap=chance.choice(SWAP_MODES),
        starve_s=chance.choice([0.005, 0.3]),
    )
    step_s = chance.choice([0.001, 0.004, 0.03])
    num_host_blocks = chance.choice([0, 6, 40, 200])
    copy_block_s = chance.choice([1e-6, 1e-3])
    return Driver(config, chance.randint(8, 40), step_s, num_host_blocks, copy_block_s)


def random_event(driver: Driver, chance: random.Random) -> None:
    """One thing happens; most often a step answers."""
    instance = chance.randrange(len(driver.config.instances))
    if chance.random() < 0.1:  # the pace changes, and with it whatever is ranked from now on
        driver.step_s = chance.choice([0.001, 0.004, 0.03])
    if chance.random() < 0.2 and driver.copied(instance):
        return
    kind = chance.random()
    if kind < 0.2:
        max_tokens, n = chance.randint(1, 30), chance.choice([1, 1, 1, 2, 4])
        driver.arrive(
            random_prompt(chance),
            max_tokens,
            n,
            chance.randint(-2, 2),
            chance.choice([1, 1, 2, 50]),
        )
    elif kind < 0.8:
        stops = frozenset({chance.randrange(20)})
        driver.answer(instance, stops)
    elif kind < 0.9 and driver.alive:
        driver.seal(chance.choice(sorted(driver.alive)))
    elif kind < 0.93 and driver.alive:
        driver.finish(chance.choice(sorted(driver.alive)))
    elif kind < 0.95 and driver.requests:
        driver.abort(chance.randrange(driver.requests))
    elif kind < 0.955:
        driver.lose(instance)
    elif kind < 0.96:
        driver.choose(chance.choice(sorted(POLICIES)))
    elif kind < 0.98 and driver.requests:
        driver.predict(chance.randrange(driver.requests), chance.randint(1, 30))
    elif kind < 0.982:
        driver.reconfigure(chance.randint(1, 12), chance.choice([0.005, 0.3]))
    else:
        driver.tick()


def random_life(seed: int, num_events: int = 300) -> Driver:
    """A daemon's life, up to its rest; workers that died come back now and then."""
    chance = random.Random(seed)
    driver = random_driver(chance)
    for _ in range(num_events):
        for instance in range(len(driver.config.instances)):
            if instance not in driver.workers and chance.random() < 0.1:
                driver.ready(instance, chance.randint(24, 40))
        random_event(driver, chance)
    for instance in range(len(driver.config.instances)):
        if instance not in driver.workers:
            driver.ready(instance, 40)
    driver.settle()
    return driver
