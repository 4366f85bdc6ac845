"""Caps by role through the real llmd-powerd, over made-up cards."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from daemon.config.schema import PowerConfig
from daemon.control.orders import RefusalError
from daemon.power import governor
from daemon.runtime import power
from daemon.runtime.power import PowerCaps
from daemon.state.role import Role
from tests.powerd.fake_cards import ORIGINAL_MW, FakeCards, needs_compiler, uuid_of
from tests.powerd.live import Powerd
from tests.runtime.ends import until

pytestmark = needs_compiler
TPOT_S = 0.1


def caps_of(path: Path, roles: Sequence[Role], *numbers: int, enabled: str = "auto") -> PowerCaps:
    """An edge whose instances have these cards; -1: none."""
    uuids = [[uuid_of(number)] if number >= 0 else [] for number in numbers]
    return PowerCaps(PowerConfig(enabled, str(path)), uuids, roles, TPOT_S)


@contextlib.asynccontextmanager
async def running(one: PowerCaps) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run())
    try:
        yield
        assert not task.done() or not task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_roles_get_their_limits_and_give_them_back(powerd: Powerd, cards: FakeCards) -> None:
    one = caps_of(powerd.path, [Role.PREFILL, Role.DECODE, Role.MIXED], 1, 2, -1)
    async with running(one):
        await until(lambda: cards.limits_mw() == (300_000, 300_000, 300_000, 150_000))
        told = one.figures(0)
        assert (told.watts, told.cap_watts, told.cap_pinned) == (71.5, 300.0, False)
        assert one.figures(2).watts is None and one.figures(2).energy_j is None
    await until(lambda: cards.limits_mw() == ORIGINAL_MW)


async def test_a_decode_cap_falls_while_the_pace_allows_and_a_flip_moves_it_at_once(
    powerd: Powerd, cards: FakeCards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governor, "LOOK_S", 0.05)
    monkeypatch.setattr(power, "INTERVAL_S", 0.02)
    one = caps_of(powerd.path, [Role.DECODE], 0)
    cards.cards[0].power_mw = 290_000

    def work() -> bool:
        for _ in range(20):
            one.step(0, 0.05, 8, 8)
        cards.cards[0].power_mw = min(290_000, cards.cards[0].limit_mw)
        return cards.cards[0].limit_mw < 250_000

    async with running(one):
        await until(work)
        monkeypatch.setattr(power, "INTERVAL_S", 3600.0)
        await asyncio.sleep(0.05)
        low_mw = cards.cards[0].limit_mw
        began_s = time.monotonic()
        one.set_roles([Role.PREFILL])
        await until(lambda: cards.cards[0].limit_mw == 300_000)
        print(f"the cap followed a flip after {1e3 * (time.monotonic() - began_s):.1f} ms")
        one.set_roles([Role.DECODE])
        await until(lambda: cards.cards[0].limit_mw == low_mw)


async def test_two_instances_on_one_card_come_to_the_higher_wish(
    powerd: Powerd, cards: FakeCards
) -> None:
    one = caps_of(powerd.path, [Role.DECODE, Role.DECODE], 0, 0)
    async with running(one):
        await until(lambda: one.figures(0).cap_watts is not None)
        await one.pin(0, "a", 150.0)
        told = await one.pin(1, "b", 200.0)
        assert (told.wish_watts, told.cap_watts) == (200.0, 200.0)
        told = await one.pin(1, "b", 120.0)
        assert (told.wish_watts, told.cap_watts) == (120.0, 150.0)
        assert cards.limits_mw()[0] == 150_000


async def test_a_card_is_one_card_however_it_is_written(powerd: Powerd, cards: FakeCards) -> None:
    uuids, roles = [[uuid_of(0)], [uuid_of(0).upper()]], [Role.DECODE, Role.DECODE]
    one = PowerCaps(PowerConfig("on", str(powerd.path)), uuids, roles, TPOT_S)
    async with running(one):
        await until(lambda: None not in (one.figures(0).cap_watts, one.figures(1).cap_watts))
        assert (await one.pin(0, "a", 200.0)).cap_watts == 300.0, "the other one wants it"
        assert (await one.pin(1, "b", 150.0)).cap_watts == 200.0
        assert cards.limits_mw()[0] == 200_000


async def test_all_cards_of_an_instance_are_read_and_limited(
    powerd: Powerd, cards: FakeCards
) -> None:
    """Power is that of all, a limit each card's."""
    uuids = [[uuid_of(0), uuid_of(1)], [uuid_of(2)]]
    roles = [Role.MIXED, Role.MIXED]
    one = PowerCaps(PowerConfig("on", str(powerd.path)), uuids, roles, TPOT_S)
    async with running(one):
        await until(lambda: None not in (one.figures(0).energy_j, one.figures(1).energy_j))
        assert one.figures(0).watts == 2 * 71.5 and one.figures(1).watts == 71.5
        assert (await one.pin(0, "a", 200.0)).cap_watts == 200.0
        assert cards.limits_mw()[:3] == (200_000, 200_000, 300_000)
        cards.cards[1].set_code = 4
        with pytest.raises(RefusalError, match=r"limit of a stays .*Insufficient Permissions"):
            await one.pin(0, "a", 150.0)
        assert cards.limits_mw()[1] == 200_000


async def test_an_operators_cap_is_as_near_as_the_card_can(
    powerd: Powerd, cards: FakeCards
) -> None:
    one = caps_of(powerd.path, [Role.PREFILL], 3)
    async with running(one):
        await until(lambda: one.figures(0).cap_watts is not None)
        told = await one.pin(0, "a", 20.0)
        assert (told.asked_watts, told.wish_watts, told.cap_watts) == (20.0, 100.0, 100.0)
        assert (told.min_watts, told.max_watts) == (100.0, 350.0)
        assert one.figures(0).cap_pinned and cards.limits_mw()[3] == 100_000
        one.set_roles([Role.DECODE])
        await asyncio.sleep(0.05)
        assert cards.limits_mw()[3] == 100_000
        assert (await one.pin(0, "a", None)).cap_watts == 300.0
        for wrong in (0.0, -5.0, float("inf"), float("nan")):
            with pytest.raises(RefusalError, match="a number of watts above 0"):
                await one.pin(0, "a", wrong)
        cards.cards[3].set_code = 4
        with pytest.raises(RefusalError, match=r"limit of a stays .*Insufficient Permissions"):
            await one.pin(0, "a", 200.0)
        cards.cards[3].set_code = 0
        assert not one.figures(0).cap_pinned


@pytest.mark.parametrize(
    ("number", "enabled", "why"),
    [
        (0, "auto", "no llmd-powerd answers at .*: No such file"),
        (0, "off", 'power.enabled is "off"'),
        (-1, "auto", "a has no card"),
    ],
)
async def test_what_cannot_be_capped_says_why(
    tmp_path: Path, number: int, enabled: str, why: str
) -> None:
    one = caps_of(tmp_path / "nobody", [Role.MIXED], number, enabled=enabled)
    async with running(one):
        await asyncio.sleep(0.05)
        with pytest.raises(RefusalError, match=why):
            await one.pin(0, "a", 200.0)
        assert one.figures(0) == power.PowerFigures(None, None, False, None, None, None)


@pytest.mark.parametrize(("enabled", "level"), [("auto", "INFO"), ("on", "WARNING")])
async def test_an_absent_helper_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    enabled: str, level: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(power, "FIRST_RETRY_S", 0.005)
    with caplog.at_level(logging.INFO, logger="daemon.runtime.power"):
        async with running(caps_of(tmp_path / "nobody", [Role.MIXED], 0, enabled=enabled)):
            await asyncio.sleep(0.2)
    assert [one.levelname for one in caplog.records] == [level]


async def test_a_helper_that_answers_nothing_is_said_once(
    powerd: Powerd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes no more connections: each try gets one, and loses it."""
    monkeypatch.setattr(power, "FIRST_RETRY_S", 0.005)
    monkeypatch.setattr(power, "LAST_RETRY_S", 0.02)
    others = [powerd.talk() for _ in range(16)]
    assert all(one.read(0)["ok"] for one in others)
    one = caps_of(powerd.path, [Role.MIXED], 0)
    with caplog.at_level(logging.INFO, logger="daemon.runtime.power"):
        async with running(one):
            await asyncio.sleep(0.3)
            said = [record.message for record in caplog.records]
            assert said and len(said) == len(set(said)), said
            others.pop().close()
            chosen = "power limits are chosen through llmd-powerd at"
            await until(lambda: caplog.records[-1].message.startswith(chosen))


async def test_a_helper_that_dies_and_comes_back_gets_the_leases_again(
    powerd: Powerd, cards: FakeCards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "INTERVAL_S", 0.02)
    monkeypatch.setattr(power, "FIRST_RETRY_S", 0.02)
    one = caps_of(powerd.path, [Role.DECODE, Role.PREFILL], 0, 1)
    async with running(one):
        await until(lambda: one.figures(0).cap_watts is not None)
        await one.pin(0, "a", 150.0)
        leased = (150_000, 300_000, *ORIGINAL_MW[2:])
        await until(lambda: cards.limits_mw() == leased)
        powerd.kill()
        await until(lambda: one.figures(0).watts is None)
        with pytest.raises(RefusalError, match=r"no llmd-powerd answers|has ended"):
            await one.pin(0, "a", 200.0)
        await asyncio.to_thread(powerd.start)
        await until(lambda: cards.limits_mw() == leased)
        assert one.figures(0).cap_pinned
    await until(lambda: cards.limits_mw() == ORIGINAL_MW)


async def test_a_lease_that_was_asked_for_when_the_helper_died_is_asked_for_again(
    powerd: Powerd, cards: FakeCards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon learns of the death by its other question first."""
    monkeypatch.setattr(power, "INTERVAL_S", 0.01)
    monkeypatch.setattr(power, "FIRST_RETRY_S", 0.02)
    one = caps_of(powerd.path, [Role.PREFILL], 1)
    async with running(one):
        await until(lambda: cards.limits_mw()[1] == 300_000)
        cards.machine.slow_us = 200_000
        await asyncio.sleep(0.1)
        pinning = asyncio.create_task(one.pin(0, "a", 150.0))
        await asyncio.sleep(0.01)
        powerd.kill()
        with pytest.raises(RefusalError, match="has ended"):
            await pinning
        cards.machine.slow_us = 0
        await asyncio.to_thread(powerd.start)
        await until(lambda: one.figures(0).watts is not None)
        await until(lambda: cards.limits_mw()[1] == 300_000)


async def test_a_card_that_fails_is_tried_again_and_said_once(
    powerd: Powerd,
    cards: FakeCards,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(power, "INTERVAL_S", 0.02)
    one = caps_of(powerd.path, [Role.PREFILL, Role.PREFILL], 1, 2)
    cards.cards[1].look_code = 15
    async with running(one):
        await until(lambda: cards.limits_mw()[2] == 300_000)
        await asyncio.sleep(0.1)
        assert one.figures(0).watts is None
        with pytest.raises(RefusalError, match="GPU is lost"):
            await one.pin(0, "a", 200.0)
        cards.cards[1].look_code = 0
        await until(lambda: cards.limits_mw()[1] == 300_000)
        cards.cards[2].look_code = 15
        await until(lambda: one.figures(1).watts is None)
        assert one.figures(0).watts == 71.5 and one.figures(1).energy_j is not None
        cards.cards[2].look_code = 0
        await until(lambda: one.figures(1).watts is not None)
        cards.cards[1].set_code = 4
        one.set_roles([Role.DECODE, Role.PREFILL])
        await asyncio.sleep(0.1)
        assert one.figures(0).watts == 71.5, "it is read all the same"
    assert len([one for one in caplog.records if "GPU is lost" in one.message]) == 2
