"""How far one looks to follow a request through the Core: files and calls from one to another.

Traced from a small daemon's Core: an arrival on an idle instance, a steady decode step, and a
prompt that is computed at one instance and goes on at another. A change that makes a walk longer
raises its bound knowingly.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from daemon.core.core import Core
from daemon.core.values.events import Event
from daemon.state.role import Role
from tests.core.driver import Driver, configured


class Walk(NamedTuple):
    """The files that were entered, and the calls from one file to another."""

    files: int
    crossings: int


class Tracer:
    """Follows what a Core does with its events while it is on."""

    def __init__(self, core: Core) -> None:
        self._files: set[str] = set()
        self._crossings = 0
        self._on = False
        handle = core.handle

        def traced(event: Event) -> object:
            if not self._on:
                return handle(event)
            sys.setprofile(self._note)
            try:
                return handle(event)
            finally:
                sys.setprofile(None)

        core.handle = traced  # type: ignore[method-assign, assignment]

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or "/daemon/" not in name:
            return
        self._files.add(name)
        caller = frame.f_back
        self._crossings += caller is not None and caller.f_code.co_filename != name

    def walk(self, life: Callable[[], object]) -> Walk:
        """The files and calls of the Core during `life`."""
        self._files.clear()
        self._crossings, self._on = 0, True
        life()
        self._on = False
        return Walk(len(self._files), self._crossings)


BOUNDS = {
    "an arrival and its first step": Walk(48, 160),
    "a steady decode step": Walk(26, 64),
    "a prompt that goes on elsewhere": Walk(62, 1200),
}


def walks() -> dict[str, Walk]:
    alone = Driver(configured("gittins"), 64)
    tracer = Tracer(alone.core)
    arrival = tracer.walk(lambda: alone.arrive([1] * 9, 8))
    for _ in range(3):
        alone.answer()
    steady = tracer.walk(alone.answer)
    pair = Driver(configured("gittins", instances=2), 64)
    pair.link_all()
    pair.flip(0, Role.PREFILL)
    pair.flip(1, Role.DECODE)
    tracer = Tracer(pair.core)

    def handed_off() -> None:
        pair.arrive([1] * 9, 8)
        pair.settle()

    handoff = tracer.walk(handed_off)
    assert pair.core.counters.handoffs == 1
    return dict(zip(BOUNDS, (arrival, steady, handoff), strict=True))


def test_walks_through_the_core_are_no_longer_than_is_written() -> None:
    found = walks()
    for name, bound in BOUNDS.items():
        walk = found[name]
        assert walk.files <= bound.files and walk.crossings <= bound.crossings, (name, walk)
        assert walk.files > 0.8 * bound.files, f"{name}: {walk} is far shorter: lower the bound"
