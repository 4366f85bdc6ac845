"""The watchdog is fed by a loop that turns and work that moves, and by nothing else."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from daemon.base import notify
from daemon.config.schema import Config, InstanceSpec
from daemon.runtime import life, serving
from daemon.runtime.status import DaemonStatus
from daemon.supervisor.patience import LOOK_S
from daemon.supervisor.step_watch import COMPILE_S, LEAST_S
from tests.hangs import HANG_S
from tests.runtime.ends import House, generate, until

Build = Callable[..., House]


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A mark for each meal, every 10 ms."""
    meals: list[str] = []
    monkeypatch.setattr(notify, "alive", lambda: meals.append("fed"))
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    return meals


async def test_it_is_fed_while_nothing_is_stuck(
    fed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    why = [""]
    feeding = asyncio.create_task(life.feed_watchdog(lambda: why[0]))
    await until(lambda: len(fed) >= 3)
    why[0] = "worker cpu has not answered for 75 s"
    with caplog.at_level(logging.ERROR):
        await until(lambda: bool(caplog.records))
        meals = len(fed)
        await asyncio.sleep(0.05)
    assert len(fed) == meals
    assert [one.getMessage() for one in caplog.records] == [f"the watchdog is not fed: {why[0]}"]
    why[0] = ""
    await until(lambda: len(fed) > meals)
    feeding.cancel()


async def test_without_a_watchdog_nothing_is_sent(
    fed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC")
    async with asyncio.timeout(HANG_S):
        await life.feed_watchdog(lambda: "")
    assert fed == []


async def test_only_work_that_waits_for_a_worker_can_be_stuck(
    house_of: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    house = house_of()
    config = Config(instance=(InstanceSpec("cpu", "mixed", "first"),))
    assert DaemonStatus(house.parts(config)).stuck() == "", "before there is a Core"
    seen = house.status(config)

    def later(seconds: float) -> str:
        with monkeypatch.context() as patch:
            began_s = house.runtime.core.instances[0].step_began_s
            clock[0] = began_s + seconds
            patch.setattr(serving.time, "monotonic", lambda: clock[0])
            return seen.stuck()

    assert later(1e6) == "", "while it loads"
    house.ready()
    assert later(1e6) == "", "at rest"
    house.paused = True
    house.api.send(generate(1, [1, 2, 3]))
    await until(lambda: bool(house.plans))
    assert later(serving.STUCK_S - 1) == "", "a long step"
    assert later(serving.STUCK_S + 1) == "worker a has not answered for 61 s"
    house.resume()
    await house.ended(1)
    assert later(1e6) == "", "at rest again"
    house.paused = True
    house.api.send(generate(2, [1, 2, 3]))
    await until(lambda: bool(house.plans))
    house.lose()
    assert later(1e6) == "", "a dead worker is no silent one"
    house.ready()
    house.resume()
    await house.ended(2)


def test_a_worker_that_compiles_for_ever_is_ended_before_the_daemon_is() -> None:
    assert LEAST_S + COMPILE_S + LOOK_S < serving.STUCK_S
