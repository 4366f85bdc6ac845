"""Whole lives in which the watcher changes roles all the time, by chance: nothing is lost, and a
journal, from its beginning or from a checkpoint, gives the same again.
"""

import random
from collections.abc import Sequence as Listing

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.events import RolesChosen
from daemon.core.view.checkpoint import Checkpoint, checkpoint, restore
from daemon.placement import PLACEMENTS
from daemon.roles.decide import Decided, Decider
from daemon.roles.forecast import Forecast
from daemon.state.role import AUTO
from daemon.wire.columns import decoder, encoder
from tests.core.driver import Driver
from tests.core.random_migrations import begin, revive, step
from tests.soak import SOAK

NAMES = sorted(PLACEMENTS)
_encode, _decode = encoder().encode, decoder(Checkpoint).decode


class Restless(Decider):
    """Chooses by chance, which its arguments alone decide on."""

    def enough(self, now: float, num_requests: int) -> bool:
        return True

    def without(self, now: float, present: str, forecasts: Listing[Forecast]) -> Decided | None:
        return None

    def look(
        self, now: float, present: str, forecasts: Listing[Forecast], cost: float = 0.0
    ) -> Decided:
        super().look(now, present, forecasts, cost)
        chance = random.Random(repr((now, present, len(forecasts))))
        drawn = chance.choice(forecasts).choice
        self.state.changed_s = now
        return Decided(present if chance.random() < 0.5 else drawn, "by chance")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.core.roles.watcher.Decider", Restless)
    monkeypatch.setattr("daemon.core.roles.watcher.LEAST_STEPS", 1)
    monkeypatch.setattr("daemon.core.roles.choices.LEAST_STEPS", 1)
    monkeypatch.setattr("daemon.core.roles.watcher.HINDERED_S", 0.05)
    monkeypatch.setattr("daemon.roles.window.BUCKET_S", 0.01)


def live(seed: int) -> tuple[Driver, list[tuple[int, bytes]]]:
    """A life, and its checkpoints: how many events came before each, and what was written."""
    chance, written = random.Random(seed), list[tuple[int, bytes]]()
    drawn, num_blocks = begin(chance)
    named = chance.choice(NAMES)
    bending = tuple(
        msgspec.structs.replace(one, chunk_is_own=True) for one in drawn.config.instances
    )
    config = msgspec.structs.replace(
        drawn.config,
        instances=bending,
        roles=AUTO,
        placement=named,
        slo_ttft_s=0.05,
        slo_tpot_s=1.2 * drawn.step_s,
    )
    driver = Driver(config, num_blocks, drawn.step_s, drawn.num_host_blocks, 1e-6, token_s=1e-4)
    driver.link_all()
    for _ in range(250):
        step(driver, num_blocks, chance)
        driver.now += 0.002 * chance.random()
        if driver.requests and chance.random() < 0.2:
            driver.predict(chance.randrange(driver.requests), chance.randint(1, 20))
        if chance.random() < 0.02:
            mode = chance.choice([AUTO, AUTO, "mixed"])
            driver.handle(RolesChosen(driver.now, mode))
        if chance.random() < 0.01:
            driver.now += chance.choice([1.0, 50.0])
        if chance.random() < 0.03:
            driver.settle()
            if driver.core.idle:
                state = _encode(checkpoint(driver.core, driver.now))
                written.append((len(driver.events), state))
    revive(driver, num_blocks)
    for instance in range(len(driver.config.instances)):
        driver.resume_one(instance)
    driver.settle()
    assert not driver.alive
    driver.check_nothing_left()
    return driver, written


@pytest.mark.parametrize("seed", (5, 6, 43) if SOAK else (6,))
def test_a_life_under_a_restless_watcher_ends_well_and_is_the_same_again(seed: int) -> None:
    driver, written = live(seed)
    assert written and driver.core.counters.flips > 8
    again = Core(driver.config)
    for event, actions in zip(driver.events, driver.actions, strict=True):
        assert _encode(again.handle(event)) == _encode(actions)
    for first, state in written:
        later = Core(driver.config)
        restore(later, _decode(state))
        assert _encode(checkpoint(later, _decode(state).now)) == state
        for event, actions in zip(driver.events[first:], driver.actions[first:], strict=True):
            assert _encode(later.handle(event)) == _encode(actions)
