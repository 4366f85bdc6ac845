"""Random lives of sequences with states that give way, and what may happen to them meanwhile."""

import random
from functools import cache

import pytest

from daemon.core.values.actions import Action, Submit
from daemon.core.values.events import Event
from daemon.scheduler.policies import POLICIES
from tests.core.driver import Driver, configured
from tests.core.traffic import random_prompt
from tests.soak import tries

SEEDS = (2, 10, 12, 13, 16, *range(100, tries(101, 300)))
"""The first ones have many that give way."""
LAYERS = [((0,), 3), ((0, 0), 2), ((), 4), ((0, 8), 3)]
"""Windows of groups of layers, and pages of a sequence's states."""
LIKELY = ["vllm", "sarathi", "gittins", "synced", "packed", "srtf", *sorted(POLICIES)]


class GivingWay(Driver):
    """A daemon of one or two instances, of which no step computes a sequence that gives way."""

    def giving_way(self) -> list[tuple[int, int, int]]:
        """(instance, slot, sequence) of each that gives way."""
        tables = [each.scheduler.slots for each in self.core.instances]
        return [
            (index, slot, table.member(slot).id)
            for index, table in enumerate(tables)
            for slot in table.giving_way
        ]

    def handle(self, event: Event) -> list[Action]:
        """Handle an event, and look at all plans that it brings."""
        before = set(self.giving_way())
        actions = super().handle(event)
        still = before.intersection(self.giving_way())
        for action in actions:
            if isinstance(action, Submit):
                batch = action.batch
                rows = {(batch.instance, slot) for slot in batch.slots.tolist()}
                assert rows.isdisjoint((index, slot) for index, slot, _ in still)
        return actions


def begun(chance: random.Random) -> tuple[GivingWay, int]:
    """A small daemon, and the pages of each of its pools."""
    windows, pages = chance.choice(LAYERS)
    num = chance.choice([1, 1, 2])
    config = configured(
        chance.choice(LIKELY),
        num,
        depth=chance.choice([2, 2, 3]),
        max_running=chance.randint(2, 6),
        max_batch_tokens=chance.randint(6, 40),
        prefill_chunk=chance.randint(4, 20),
        prefix_cache=chance.random() < 0.7,
        max_len=96,
        swap=chance.choice(["reactive", "proactive", "dynamic"]),
        starve_s=chance.choice([0.005, 0.3]),
        max_pause_s=chance.choice([0.004, 0.05, 4.0]),
    )
    num_pages = chance.randint(16, 30) * max(1, len(windows)) + 3 * pages
    host = chance.choice([6, 200, 200, 200])  # without room their KV is computed again
    most_times = chance.choice([1, 3])
    driver = GivingWay(config, num_pages, 0.004, host, 1e-6, 1e-3, most_times, windows, pages)
    driver.link_all()
    return driver, num_pages


def disturb(driver: GivingWay, chance: random.Random) -> str:
    """Something happens to one that gives way."""
    instance, _, sequence = chance.choice(driver.giving_way())
    what = chance.choice(["abort", "finish", "lose", "move", "predict", "choose"])
    if what == "abort":
        driver.abort(sequence // 128)
    elif what == "finish":
        driver.finish(sequence)
    elif what == "lose":
        driver.lose(instance)
    elif what == "move":
        driver.move(sequence, len(driver.config.instances) - 1 - instance)
    elif what == "predict":
        driver.predict(sequence // 128, chance.randint(1, 30))
    else:
        driver.choose(chance.choice(sorted(POLICIES)), instance)
    return what


def step(driver: GivingWay, chance: random.Random) -> None:
    """One thing happens, mostly an answer."""
    instance, what = chance.randrange(len(driver.config.instances)), chance.random()
    if what < 0.25 and len(driver.alive) < 10:
        max_tokens = chance.choice([chance.randint(1, 12), chance.randint(20, 60)])
        driver.arrive(random_prompt(chance), max_tokens, chance.choice([1, 1, 2, 3]))
        driver.predict(driver.requests - 1, chance.randint(1, 50))
    elif what < 0.75:
        driver.answer(instance, frozenset({chance.randrange(30)}))
    elif what < 0.83:
        driver.copied(instance)
    elif what < 0.88 and driver.sendings:
        number = chance.choice(sorted(driver.sendings))
        driver.land(number, chance.choice(sorted(driver.sendings[number].ends)), 1 << 30)
    elif what < 0.92 and driver.alive:
        driver.seal(chance.choice(sorted(driver.alive)))
    else:
        driver.tick()


@cache
def lived(seed: int) -> tuple[int, frozenset[str]]:
    """A life to its rest: how often some gave way, and what happened to those."""
    chance = random.Random(f"giving way {seed}")
    driver, num_pages = begun(chance)
    num_given, happened = 0, set()
    for _ in range(250):
        for index in range(len(driver.config.instances)):
            if index not in driver.workers and chance.random() < 0.2:
                driver.ready(index, num_pages)
        giving = bool(driver.giving_way())
        num_given += giving
        if giving and chance.random() < 0.4:
            happened.add(disturb(driver, chance))
        else:
            step(driver, chance)
    for index in range(len(driver.config.instances)):
        if index not in driver.workers:
            driver.ready(index, num_pages)
    driver.settle()
    assert not driver.alive and not driver.giving_way()
    driver.check_nothing_left()
    return num_given, frozenset(happened)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_life_ends_well_whatever_happens_to_those_that_give_way(seed: int) -> None:
    lived(seed)


def test_these_lives_have_what_they_are_for() -> None:
    lives = [lived(seed) for seed in SEEDS]
    assert sum(num for num, _ in lives) > 10
    assert len(frozenset().union(*(what for _, what in lives))) >= 3
