"""Steps that come again are what planning them anew gives: same actions, same state, any policy."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.core.core import Core
from daemon.core.values.actions import Submit
from daemon.core.view.checkpoint import checkpoint
from daemon.core.view.view import snapshot
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.steady_decode import SteadyDecodes
from daemon.wire.columns import encoder
from tests.core.driver import Driver, configured
from tests.core.traffic import random_event, random_prompt
from tests.soak import SOAK, tries


def calm_life(policy: str, seed: int, most_times: int = 1) -> Driver:
    """A small daemon's life in which most often a step answers and nothing else happens."""
    chance = random.Random(seed)
    config = configured(
        policy,
        chance.randint(1, 2),
        depth=chance.randint(1, 3),
        max_running=chance.randint(1, 6),
        max_batch_tokens=chance.choice([4, 32]),
        max_waiting=20,
        swap=chance.choice(["", "proactive", "dynamic", "reactive", "recompute", "defer"]),
    )
    blocks = {"num_blocks": chance.choice([30, 60, 400]), "num_host_blocks": chance.choice([0, 40])}
    driver = Driver(config, **blocks, most_times=most_times)
    for _ in range(chance.randint(1, 8)):
        driver.arrive(random_prompt(chance), chance.choice([3, 20, 60]))
    for _ in range(60):
        if chance.random() < 0.1:
            random_event(driver, chance)
        driver.answer(chance.randrange(len(config.instances)))
        if driver.wake_at_s <= driver.now + driver.step_s:
            driver.tick()
    for instance in range(len(config.instances)):
        if instance not in driver.workers:
            driver.ready(instance, 60)
    driver.settle()
    return driver


class Never(SteadyDecodes):
    """Every step is planned anew."""

    def next(self, now: float) -> None:
        return None


def replanned(driver: Driver) -> Core:
    """Another Core that takes the same events and never repeats a step; its actions are equal."""
    core, encode = Core(driver.config), encoder().encode
    for instance in core.instances:
        scheduler = instance.scheduler
        parts = scheduler.admission, scheduler.drafting, scheduler.limits.max_batch_tokens
        scheduler.steady_decodes = Never(*parts)
    for number, (event, actions) in enumerate(zip(driver.events, driver.actions, strict=True)):
        assert encode(core.handle(event)) == encode(actions), f"event {number}, {event}"
    return core


@settings(max_examples=tries(2, 100), deadline=None, derandomize=not SOAK)
@given(seed=st.integers(0, 1 << 30))
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_repeated_steps_are_those_that_are_planned_anew(policy: str, seed: int) -> None:
    driver = calm_life(policy, seed)
    core = replanned(driver)
    encode, now = encoder().encode, driver.now
    assert encode(snapshot(core, now)) == encode(snapshot(driver.core, now))
    assert encode(checkpoint(core, now)) == encode(checkpoint(driver.core, now))


def test_most_steps_of_decodes_alone_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated: list[int] = []
    emit_again = Scheduler._emit_steady
    monkeypatch.setattr(
        Scheduler,
        "_emit_steady",
        lambda self, steady: repeated.append(self.step) or emit_again(self, steady),  # type: ignore[func-returns-value]
    )
    driver = Driver(configured(max_len=200), 200)
    for _ in range(3):
        driver.arrive([1, 2, 3], 100)
    driver.settle()
    steps = [one for actions in driver.actions for one in actions if isinstance(one, Submit)]
    assert len(repeated) > 0.9 * len(steps)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_step_that_is_repeated_keeps_to_the_budget(policy: str) -> None:
    """Six run, and a step may have four tokens: the driver's laws see to that."""
    driver = Driver(configured(policy, max_batch_tokens=4, prefill_chunk=4, max_running=6), 60)
    for number in range(6):
        driver.arrive([number, 1, 2], 12)
    driver.settle()
    assert len(driver.ended) == 6
    driver.check_nothing_left()


def test_a_step_is_not_counted_on_from_one_before_the_newest() -> None:
    """A suspect for which there is no room comes and goes; meanwhile every step is planned anew."""
    driver = Driver(configured(instances=2), 12)
    deadly = driver.arrive([9] * 13, 10)
    driver.arrive(list(range(36)), 12)
    for _ in range(6):
        driver.answer(1)
    driver.lose(0, blamed=True)
    for _ in range(3):
        driver.answer(1)
    assert driver.core.sequences[deadly * 128].slot < 0, "there is no room for it"
    driver.abort(deadly)
    driver.settle()
    assert driver.num_outputs(128) == 12
    driver.ready(0, 12)
    driver.check_nothing_left()
