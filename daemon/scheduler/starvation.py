"""Which waiting sequences have waited too long: those of the longest wait are looked at first."""

from collections import deque
from collections.abc import Iterator

from daemon.request import State
from daemon.sequence import Sequence

LOOK_EVERY_S = 0.05


class Starvation:
    """Sequences in the order in which they began to wait; whoever ran since is dropped."""

    def __init__(self) -> None:
        self._watched: deque[tuple[float, Sequence]] = deque()
        self._looked_s = 0.0

    def watch(self, sequence: Sequence) -> None:
        """It waits since `waiting_since_s`, which is not before that of any other here."""
        self._watched.append((sequence.waiting_since_s, sequence))

    def waiting(self, now: float, starve_s: float) -> Iterator[Sequence]:
        """Those that have waited for `starve_s` at least; now and then, not at each step."""
        if now - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now
        kept: list[tuple[float, Sequence]] = []
        watched = self._watched
        while watched and now - watched[0][0] >= starve_s:
            since_s, sequence = watched.popleft()
            waits = sequence.state in (State.WAITING, State.PREEMPTED)
            if waits and sequence.waiting_since_s == since_s and not sequence.promoted:
                yield sequence
                if not sequence.promoted:
                    kept.append((since_s, sequence))
        watched.extendleft(reversed(kept))
