"""Asleep instances: configured, but without a worker until no other has room.

Aladdin's Algorithm 1 opens a new bin where a request fits none, and its bins are there at once. A
worker takes seconds to minutes to start, so its wake time is part of the decision: an instance is
woken as soon as a newcomer is expected to begin sooner there than at any that is awake, or once
none has had room for as long as a wake takes. The second rule needs no prediction, and waits at
most twice as long in all as if the future were known. When that time is over the sequence that
waits longest is asked for, whether or not another comes. The newcomer itself is queued at an awake
instance; balancing takes it to the woken one.
"""

import math
from collections.abc import Sequence as Listing

import msgspec

from daemon.core.instance.instance import Instance, WorkerState
from daemon.core.placing.candidate import InstanceView
from daemon.core.wakes import NEVER
from daemon.placement.base import Newcomer, Placement

NEVER_SHORT = -1.0


class AsleepState(msgspec.Struct, array_like=True):
    """The state that decisions depend on, beside the instances' own."""

    short_since_s: float = NEVER_SHORT  # the time since which none that is awake has room
    woken_s: dict[int, float] = {}  # when each instance that loads was woken
    took_s: dict[str, float] = {}  # by kind of device: how long the newest wake took


class Asleep:
    """The instances without a worker, and when one of them should get one."""

    def __init__(self, instances: Listing[Instance]) -> None:
        self._instances = instances
        self.state = AsleepState()
        self.due_s = NEVER  # when a lack of room will have lasted for as long as a wake

    @property
    def any(self) -> bool:
        """Whether an instance could be woken, and none is about to be ready."""
        states = [instance.state for instance in self._instances]
        return WorkerState.ASLEEP in states and WorkerState.LOADING not in states

    def first(self) -> Instance | None:
        """The instance that wakes soonest; None if none sleeps."""
        asleep = [home for home in self._instances if home.state is WorkerState.ASLEEP]
        return min(asleep, key=lambda home: (self.wakes_in_s(home), home.index), default=None)

    def wakes_in_s(self, instance: Instance) -> float:
        """How long its wake should take: as that of the last one on such a device, else as
        configured.
        """
        return self.state.took_s.get(_kind(instance), instance.config.wakes_in_s)

    def woken(self, instance: Instance, now: float) -> None:
        """Note that an instance was told to wake."""
        self.state.woken_s[instance.index] = now

    def ready(self, instance: Instance, now: float) -> None:
        """Learn from a worker that is ready, if its instance was woken for it."""
        woken_s = self.state.woken_s.pop(instance.index, None)
        if woken_s is not None:
            self.state.took_s[_kind(instance)] = now - woken_s
            self._update_due()

    def lost(self, instance: Instance) -> None:
        """Forget a wake whose worker died: the next one tells how long a restart takes too."""
        self.state.woken_s.pop(instance.index, None)

    def restore(self, state: AsleepState) -> None:
        """Go on from a written state."""
        self.state = state
        self._update_due()

    def _update_due(self) -> None:
        sleeper, since_s = self.first(), self.state.short_since_s
        self.due_s = NEVER
        if sleeper is not None and since_s >= 0.0:
            self.due_s = since_s + self.wakes_in_s(sleeper)

    def to_wake(
        self,
        newcomer: Newcomer,
        views: Listing[InstanceView],
        placement: Placement,
        waits_since_s: float = NEVER_SHORT,
    ) -> Instance | None:
        """The instance to wake as this newcomer is placed, or waits; None: those awake are enough.

        `views` are of all awake instances that could take it; none: all such are drained. One that
        is idle has room, whatever placement says: no other would begin sooner.
        """
        sleeper, state = self.first(), self.state
        if sleeper is None or any(
            view.is_idle or placement.has_room(newcomer, view) for view in views
        ):
            self.end_shortage()
            return None
        if state.short_since_s < 0.0:
            state.short_since_s = newcomer.now
        state.short_since_s = max(state.short_since_s, waits_since_s)
        expected_s = min((view.begins_in_s(newcomer) for view in views), default=math.inf)
        self._update_due()
        if expected_s < self.wakes_in_s(sleeper) and newcomer.now < self.due_s:
            return None
        self.end_shortage()
        return sleeper

    def end_shortage(self) -> None:
        """Note that an awake instance has room, or that one wakes."""
        self.state.short_since_s, self.due_s = NEVER_SHORT, NEVER


def _kind(instance: Instance) -> str:
    return instance.config.device.partition(":")[0]
