"""How long a process may stand still by a signal while it owes an answer."""

from collections.abc import Iterable
from typing import Any

from daemon.supervisor.patience import LOOK_S
from daemon.supervisor.silence import STOPPED_S, Silence

LOOKS = round(STOPPED_S / LOOK_S)


class Seen:
    """A process of which look after look sees whether it is stopped."""

    def __init__(self, stopped: Iterable[bool]) -> None:
        self._stopped = iter(stopped)

    @property
    def stopped(self) -> bool:
        return next(self._stopped)


def given_up(stopped: list[bool]) -> bool:
    """Whether it is, if it owes an answer that may take long, and does so for a while already."""
    told: list[str] = []
    seen: Any = Seen(stopped)
    silence = Silence(seen, lambda: told.append("overdue"), lambda: 0.0)
    silence.expect(3600.0)
    silence._patience._waited_s = 2 * STOPPED_S
    for _ in stopped:
        if silence.expecting:
            silence.stop()
            silence._look()
    silence.stop()
    return bool(told)


async def test_one_that_stands_still_for_a_moment_is_let_be() -> None:
    assert not given_up([False, *[True] * LOOKS, False, *[True] * LOOKS])


async def test_one_that_stands_still_is_given_up() -> None:
    assert given_up([False, *[True] * (LOOKS + 1)])
