"""The transition watcher's rules: an instance of little load changes its role (TetriInfer, 3.5).

The paper's text gives an example, a load under a tenth for the past minute, and its evaluation
another, idle for a minute. It does not say what keeps both sides from changing for ever where all
are idle: here an instance changes only where those of the other role have more load than the rule's
bound, and the last one of a role stays.
"""

from collections import deque
from collections.abc import Sequence as Listing
from typing import NamedTuple

import msgspec

from daemon.state.role import LOW_LOAD, Role

WINDOW_S = 60.0
"""The past that counts."""
BUCKET_S = 5.0
"""The time between two looks."""
LOW_SHARE = 0.1
"""A load below this share of the time is low; where only idle instances change, 0 is."""
_BUCKETS = round(WINDOW_S / BUCKET_S)
_OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


class InstanceLoad(NamedTuple):
    """An instance as the rules see it."""

    name: str
    role: Role
    share: float  # of the past minute in which it computed
    seen_s: float  # since its role last changed, or work came after a rest
    is_free: bool  # its role is not pinned


class Transition(NamedTuple):
    """The change of one instance's role."""

    place: int  # in the list of loads
    role: Role
    why: str


def transition(rule: str, loads: Listing[InstanceLoad]) -> Transition | None:
    """The change that the rule, LOW_LOAD or IDLE, makes now, if any: of the least loaded first."""
    for load in sorted(loads, key=lambda load: load.share):
        if not load.is_free or load.seen_s < WINDOW_S or not _is_low(rule, load.share):
            continue
        if load.role is Role.MIXED:
            continue
        role = _OTHER[load.role]
        others = [other.share for other in loads if other.role is role]
        is_last = sum(other.role is load.role for other in loads) == 1
        if is_last or not others or _is_low(rule, sum(others) / len(others)):
            continue
        busy = sum(others) / len(others)
        had = f"computed {load.share:.0%} of the past minute" if load.share else "idle for a minute"
        why = f"{load.name} {had}, {role} instances computed {busy:.0%} of it"
        return Transition(loads.index(load), role, why)
    return None


def _is_low(rule: str, share: float) -> bool:
    return share < LOW_SHARE if rule == LOW_LOAD else share <= 0.0


class BusyState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a BusyWindow."""

    edge_s: float
    since_s: list[float]
    busy_s: list[list[float]]


class BusyWindow:
    """The time that each instance computed in the past minute, in buckets of some seconds."""

    def __init__(self, num_instances: int) -> None:
        self.edge_s = -1.0  # end of the newest bucket; -1: no work came since the last rest
        self.since_s = [0.0] * num_instances  # start of what counts of each
        self._busy_s = [deque[float]() for _ in range(num_instances)]

    def begin(self, now: float) -> None:
        """Begin anew: work came after a rest."""
        self.edge_s = now + BUCKET_S
        self.since_s = [now] * len(self.since_s)
        self._busy_s = [deque([0.0], _BUCKETS) for _ in self._busy_s]

    def worked(self, index: int, elapsed_s: float) -> None:
        """Note a step of an instance."""
        self._busy_s[index][-1] += elapsed_s

    def share(self, index: int) -> float:
        """The share of the past minute in which an instance computed."""
        return min(1.0, sum(self._busy_s[index]) / WINDOW_S)

    def close(self, now: float) -> None:
        """Close the buckets that are over; where nothing worked for the whole time, rest."""
        if not any(map(any, self._busy_s)):
            self.edge_s = -1.0
            return
        while now >= self.edge_s:
            self.edge_s += BUCKET_S
            for busy_s in self._busy_s:
                busy_s.append(0.0)

    def state(self) -> BusyState:
        """The state of this window."""
        return BusyState(self.edge_s, list(self.since_s), [list(busy) for busy in self._busy_s])

    @classmethod
    def restored(cls, state: BusyState) -> "BusyWindow":
        """The window with this state."""
        window = cls(len(state.since_s))
        window.edge_s, window.since_s = state.edge_s, list(state.since_s)
        window._busy_s = [deque(busy_s, _BUCKETS) for busy_s in state.busy_s]
        return window
