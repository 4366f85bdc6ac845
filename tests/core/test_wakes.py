"""Whose next step is planned when: what was set last counts, and one at rest is not asked."""

import random

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.actions import Action
from daemon.core.values.events import Event
from daemon.core.wakes import AT_ONCE, NEVER, Wakes
from daemon.memory.swap_space import SWAP_MODES
from daemon.placement.balance import Balancer
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.scheduler import Scheduler
from daemon.wire.columns import encoder
from tests.core.driver import Driver, configured
from tests.core.traffic import random_event
from tests.soak import tries


def test_the_due_are_taken_once_and_in_order() -> None:
    wakes = Wakes(4)
    for instance, due_s in enumerate([3.0, AT_ONCE, 1.0, 2.0]):
        wakes.set(instance, due_s)
    assert wakes.take(2.0) == [1, 2, 3]
    assert wakes.take(2.0) == []
    assert wakes.next_s == 3.0


def test_a_time_that_was_set_anew_is_forgotten() -> None:
    wakes = Wakes(2)
    for due_s in (1.0, 5.0, 1.0, NEVER, 4.0):
        wakes.set(0, due_s)
    wakes.set(1, 6.0)
    assert wakes.next_s == 4.0
    assert wakes.take(3.0) == []
    assert wakes.take(7.0) == [0, 1]
    assert wakes.next_s == NEVER


def test_one_that_is_to_be_asked_again_is_asked_with_the_next_event() -> None:
    wakes = Wakes(2)
    wakes.ask_again(1)
    assert wakes.take(0.0) == [1]
    assert wakes.take(0.0) == []


def test_an_event_asks_only_the_instances_that_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(configured(instances=3), 64)
    driver.arrive([1, 2, 3], 20)
    asked: list[int] = []
    schedule = Scheduler.schedule
    monkeypatch.setattr(
        Scheduler,
        "schedule",
        lambda self, *told: asked.append(self.instance) or schedule(self, *told),  # type: ignore[func-returns-value]
    )
    driver.settle()
    assert set(asked) == {0}


def test_an_instance_that_comes_to_rest_by_the_time_alone_takes_those_who_wait_elsewhere() -> None:
    """The second one admits all that wait there at its time, and has nothing to plan after that."""
    config = configured(instances=2, depth=3)
    first, second = config.instances
    first = msgspec.structs.replace(first, max_running=1)
    config = msgspec.structs.replace(config, instances=(first, second))
    driver = Driver(config, 64, step_s=0.006)
    driver.arrive([1], 9)
    driver.arrive([2] * 15, 1)
    moved = driver.arrive([3] * 15, 1)
    driver.abort(99)  # an event that touches nobody
    assert len(driver.core.instances[1].scheduler.waiting) == 1
    driver.tick()
    assert moved * 128 in driver.started
    late = driver.core.sequences[driver.arrive([4], 1) * 128]
    assert late.instance == 1, "the first one has no slot for it"
    driver.settle()
    driver.check_nothing_left()


class AskingAll(Core):
    """Every event asks every instance for a step, and balances all of them."""

    def handle(self, event: Event) -> list[Action]:
        self.touched |= set(range(len(self.instances)))
        self._balancer = Balancer(self.instances)
        return super().handle(event)


def crowded_life(seed: int) -> Driver:
    """Several instances with little room, whose workers come and go, and a restless operator."""
    chance = random.Random(seed)
    config = configured(
        chance.choice(sorted(POLICIES)),
        chance.randint(2, 3),
        depth=chance.choice([0, 1, 2, 4]),
        max_running=chance.randint(1, 4),
        swap=chance.choice(["", *SWAP_MODES]),
    )
    step_s, num_host_blocks = chance.choice([0.001, 0.006]), chance.choice([0, 40])
    driver = Driver(config, chance.choice([12, 20, 40]), step_s, num_host_blocks)
    calm = chance.random()  # how many of the events are answers
    for _ in range(100):
        instance, kind = chance.randrange(len(config.instances)), chance.random()
        if instance not in driver.workers:
            if kind < 0.3:
                driver.ready(instance, chance.choice([12, 40]))
        elif kind < 0.05:
            driver.lose(instance, blamed=chance.random() < 0.5)
        elif kind < 0.1:
            driver.choose(chance.choice(sorted(POLICIES)), chance.randint(-1, instance))
        elif kind < 0.2:
            prompt = [chance.randrange(9)] * chance.randint(1, 30)
            driver.arrive(prompt, chance.choice([1, 9, 20]), chance.choice([1, 1, 3]))
        elif chance.random() < calm:
            driver.answer(instance)
        else:
            random_event(driver, chance)
    return driver


@pytest.mark.parametrize("seed", range(tries(8, 40)))
def test_asking_all_instances_would_give_the_same(seed: int) -> None:
    driver, encode = crowded_life(seed), encoder().encode
    other = AskingAll(driver.config)
    for number, (event, actions) in enumerate(zip(driver.events, driver.actions, strict=True)):
        assert encode(other.handle(event)) == encode(actions), f"event {number}, {event}"
