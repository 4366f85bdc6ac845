"""Every card has its own limit again after SIGKILL of who wants another, of the helper, of both."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.hangs import HANG_S
from tests.house.source import ROOT
from tests.powerd.fake_cards import DEFAULT_MW, ORIGINAL_MW, FakeCards, needs_compiler
from tests.powerd.live import Powerd

pytestmark = needs_compiler

CAPPED_MW = (ORIGINAL_MW[0], DEFAULT_MW, DEFAULT_MW, DEFAULT_MW)


def wait_until(happened: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + HANG_S
    while not happened():
        assert time.monotonic() < limit_s
        time.sleep(0.005)


def holder(powerd: Powerd) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.power.holder", str(powerd.path)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT)


def one_kill(powerd: Powerd, cards: FakeCards, who: str, chance: random.Random) -> None:
    """Somebody is killed at some moment; systemd's part, to start the helper again, is ours."""
    with holder(powerd) as daemon:
        try:
            if chance.random() < 0.7:
                wait_until(lambda: cards.limits_mw() == CAPPED_MW)
            time.sleep(chance.uniform(0.0, 0.1))
            if who == "both" and chance.random() < 0.5:
                daemon.kill()
            if who in {"helper", "both"}:
                powerd.kill()
            if who in {"daemon", "both"}:
                daemon.kill()
            if who in {"helper", "both"}:
                powerd.start()
            if who == "helper":
                wait_until(lambda: cards.limits_mw() == CAPPED_MW)
        finally:
            daemon.kill()
    wait_until(lambda: cards.limits_mw() == ORIGINAL_MW)
    wait_until(lambda: not powerd.state.exists() or powerd.saved() == {})


@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_at_any_time(powerd: Powerd, cards: FakeCards, count: int) -> None:
    chance = random.Random(int(os.environ.get("LLMD_SEED", "1")))
    kinds = ("daemon", "helper", "both")
    for number in range(count):
        one_kill(powerd, cards, kinds[number % len(kinds)], chance)
    print(f"{count} of {count} kills restored")
