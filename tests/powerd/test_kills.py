"""Whenever llmd-powerd is killed, the next one gives every card its own limit again."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from tests.powerd.fake_cards import (
    DIE_AFTER_SET,
    DIE_BEFORE_SET,
    MAX_MW,
    MIN_MW,
    NUM_CARDS,
    ORIGINAL_MW,
    FakeCards,
    needs_compiler,
    uuid_of,
)
from tests.powerd.live import Powerd, Talk

pytestmark = needs_compiler

MOST_DELAY_S = 0.02


def assert_restored(powerd: Powerd, cards: FakeCards) -> None:
    assert cards.limits_mw() == ORIGINAL_MW, powerd.log()
    assert powerd.saved() == {} and cards.num_bad_sets() == 0


@pytest.mark.parametrize("moment", [DIE_BEFORE_SET, DIE_AFTER_SET])
@pytest.mark.parametrize("watts", [[150], [150, 250], [150, None]], ids=str)
def test_dead_around_a_change(
    powerd: Powerd, cards: FakeCards, moment: int, watts: list[float | None]
) -> None:
    """The first lease, a later one, and the restoring: just before and just after the change."""
    talk = powerd.talk()
    for earlier in watts[:-1]:
        talk.lease(1, earlier)
    cards.machine.moment = moment
    with pytest.raises(ConnectionError):
        talk.lease(1, watts[-1])
    assert powerd.wait() == -9
    cards.machine.moment = 0
    assert powerd.saved() == {uuid_of(1): ORIGINAL_MW[1]}
    powerd.start()
    assert_restored(powerd, cards)


def test_who_is_not_started_again_is_restored_after(powerd: Powerd, cards: FakeCards) -> None:
    """What the unit does after each end, in case that nobody starts the next one."""
    talk = powerd.talk()
    talk.lease(1, 150)
    after = Powerd(powerd.folder, cards)
    after.run("--restore")
    assert after.wait() == 1 and "another llmd-powerd has" in powerd.log()
    assert talk.read(1)["cap_watts"] == 150
    powerd.kill()
    after.run("--restore")
    assert after.wait() == 0
    assert_restored(powerd, cards)


def test_dead_again_while_it_restores(powerd: Powerd, cards: FakeCards) -> None:
    talk = powerd.talk()
    for number in range(NUM_CARDS):
        talk.lease(number, 111)
    powerd.kill()
    for moment in (DIE_BEFORE_SET, DIE_AFTER_SET, DIE_AFTER_SET):
        cards.machine.moment = moment
        powerd.run()
        assert powerd.wait() == -9
    cards.machine.moment = 0
    powerd.start()
    assert_restored(powerd, cards)


def hustle(talks: list[Talk], chance: random.Random) -> None:
    """Leases and returns by several connections, of which nobody awaits the answers."""
    for _ in range(chance.randrange(1, 40)):
        talk = chance.choice(talks)
        watts = chance.choice([None, chance.uniform(0, 1.2 * MAX_MW / 1000), MIN_MW / 1000])
        number = chance.randrange(NUM_CARDS)
        question = {"verb": "lease", "device": uuid_of(number), "watts": watts}
        talk.sock.sendall(json.dumps(question).encode() + b"\n")
    if chance.random() < 0.3:
        talks.pop().close()


def killed_at_random(powerd: Powerd, cards: FakeCards, chance: random.Random) -> None:
    """One life and its sudden end, sometimes followed by one that is killed while it starts."""
    talks = [powerd.talk() for _ in range(chance.randrange(1, 4))]
    if chance.random() < 0.7:
        talks[0].lease(0, 123)
    hustle(talks, chance)
    time.sleep(chance.uniform(0, MOST_DELAY_S))
    powerd.kill()
    for talk in talks:
        talk.close()
    if chance.random() < 0.3:
        powerd.run()
        time.sleep(chance.uniform(0, 0.3))
        powerd.kill()
    powerd.start()
    assert_restored(powerd, cards)


@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_at_any_time(tmp_path: Path, cards: FakeCards, count: int) -> None:
    seed = int(os.environ.get("LLMD_SEED", "1"))
    chance = random.Random(seed)
    with Powerd(tmp_path, cards) as powerd:
        for _ in range(count):
            killed_at_random(powerd, cards, chance)
    print(f"{count} of {count} kills restored")
