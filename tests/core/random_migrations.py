"""A long random life of a few instances, with many moves: denser than hypothesis draws them."""

import random

import msgspec

from daemon.memory.swap_space import SWAP_MODES
from daemon.scheduler.policies import POLICIES
from daemon.state.role import Role
from daemon.state.transfer_mode import PAIRINGS
from tests.core import drafting
from tests.core.driver import Driver, configured

ROLES = list(Role)
WINDOWS = [(0, 8), (0, 0, 8), (0, 12, 12), (0, 8, 20), (9,)]
"""Windows of groups of layers, in tokens of blocks of 4."""
STATES = [((0,), 3), ((0, 0), 2), ((), 4), ((0, 8), 3)]
"""Windows likewise, and pages of a sequence's states."""


def begin(
    chance: random.Random, layers: random.Random | None = None, states: bool = False
) -> tuple[Driver, int]:
    """A small daemon, and the blocks of each of its pools. `layers`: some have windows, and it says
    which; with `states`, some keep states.
    """
    num = chance.choice([2, 2, 3])
    config = configured(
        chance.choice(sorted(POLICIES)),
        num,
        depth=chance.choice([0, 1, 2]),
        max_running=chance.choice([1, 2, 4, 6]),
        max_batch_tokens=chance.choice([6, 16, 40]),
        prefill_chunk=chance.choice([4, 8, 40]),
        prefix_cache=chance.random() < 0.8,
        max_len=48,
        swap=chance.choice(SWAP_MODES),
        max_pause_s=chance.choice([0.05, 4.0]),
        starve_s=0.005,
        handoff=chance.choice(["auto", "layered", "serialized"]),
    )
    given = tuple(
        msgspec.structs.replace(one, role=chance.choice(ROLES)) for one in config.instances
    )
    config = msgspec.structs.replace(
        config,
        instances=given,
        pair=chance.choice(PAIRINGS),
        mixed_pool=chance.random() < 0.5,
    )
    num_blocks = chance.choice([12, 14, 20, 30])
    host = chance.choice([0, 8, 40])
    step_s, windows, state_pages = chance.choice([0.001, 0.03]), (0,), 0
    if layers is not None:
        num_blocks, windows = layers.choice([40, 60, 90]), layers.choice(WINDOWS)
        if states:
            windows, state_pages = layers.choice(STATES)
    kinds = {"windows": windows, "state_pages": state_pages}
    driver = Driver(config, num_blocks, step_s, host, 1e-6, **kinds)
    driver.link_all()
    return driver, num_blocks


def prompt_of(chance: random.Random, shared: random.Random | None) -> list[int]:
    """A random prompt; `shared`: it begins as others do, which it says."""
    if shared is None:
        return [chance.randrange(3) for _ in range(chance.randint(1, 30))]
    family, length = shared.randrange(2), shared.randint(14, 27)
    beginning = [(7 * family + place // 3) % 11 for place in range(length)]
    return beginning + [shared.randrange(3) for _ in range(shared.randint(1, 3))]


def step(
    driver: Driver,
    num_blocks: int,
    chance: random.Random,
    drafts: random.Random | None = None,
    shared: random.Random | None = None,
) -> None:
    """One thing happens. `drafts`: rows draft, and it says how many tokens; `shared`: prompts begin
    alike, and it says how.
    """
    num, what = len(driver.config.instances), chance.random()
    instance = chance.randrange(num)
    alive = sorted(driver.alive)
    if what < 0.12 and len(alive) < 12:
        prompt = prompt_of(chance, shared)
        driver.arrive(prompt, chance.randint(1, 14), chance.choice([1, 1, 1, 3]))
    elif what < 0.5 and drafts is not None:
        drafting.answer(driver, instance, drafts.choice)
    elif what < 0.5:
        driver.answer(instance)
    elif what < 0.56:
        driver.copied(instance)
    elif what < 0.74 and driver.sendings:
        number = chance.choice(sorted(driver.sendings))
        right = chance.choice([1 << 30] * 6 + [0, 1])
        driver.land(number, chance.choice(sorted(driver.sendings[number].ends)), right)
    elif what < 0.84 and alive:
        driver.move(chance.choice(alive), instance)
    elif what < 0.90 and alive:
        driver.seal(chance.choice(alive))
    else:
        seldom(driver, num_blocks, chance, instance)


def seldom(driver: Driver, num_blocks: int, chance: random.Random, instance: int) -> None:
    """One thing of those that happen now and then."""
    what, alive = chance.random(), sorted(driver.alive)
    if what < 0.35:
        driver.flip(instance, chance.choice(ROLES))
    elif what < 0.45:
        driver.drain_one(instance)
    elif what < 0.6:
        driver.resume_one(instance)
    elif what < 0.65 and driver.links:
        source, target = way = chance.choice(sorted(driver.links))
        link = driver.links.pop(way)
        for end in chance.sample([source, target], 2):
            driver.break_link(source, target, end, link)
    elif what < 0.7:
        driver.fall()
    elif what < 0.75:
        driver.link_all()
    elif what < 0.8:
        driver.lose(instance, blamed=chance.random() < 0.5, late=chance.random() < 0.5)
    elif what < 0.9:
        revive(driver, num_blocks)
    elif alive:
        end = driver.finish if chance.random() < 0.5 else lambda one: driver.abort(one // 128)
        end(chance.choice(alive))


def revive(driver: Driver, num_blocks: int) -> None:
    """Revive dead instances, and link all."""
    for instance in range(len(driver.config.instances)):
        if instance not in driver.workers:
            driver.ready(instance, num_blocks)
    driver.link_all()


def live(
    seed: int,
    num_events: int = 400,
    drafts: bool = False,
    windows: bool = False,
    states: bool = False,
) -> Driver:
    """A whole life; everything ends, and nothing is left. Raises AssertionError."""
    chance = random.Random(seed)
    drawn = random.Random(f"drafts {seed}") if drafts else None
    layers = random.Random(f"windows {seed}") if windows or states else None
    shared = random.Random(f"prompts {seed}") if states else None
    driver, num_blocks = begin(chance, layers, states)
    for _ in range(num_events):
        step(driver, num_blocks, chance, drawn, shared)
    revive(driver, num_blocks)
    for instance in range(len(driver.config.instances)):
        driver.resume_one(instance)
    driver.settle()
    assert not driver.alive, "sequences that nobody will ever finish"
    driver.check_nothing_left()
    return driver
