"""The bound on how long a sequence waits before it begins."""

import math
from bisect import bisect_left, insort
from collections import deque

from daemon.scheduler.ageing import quantile
from daemon.scheduler.starvation import Starvation
from daemon.state.sequence import Sequence

TAIL = 0.99
TAIL_SHARE = 0.75
"""The share of the tail after which one is overdue: it then waits for its room as well."""

_WINDOW = 512
_SPARE = 64


class StartBound:
    """How long those that have not begun may wait: as long as first come first served would have
    made the slowest of late wait.

    That is the time that all which wait at an arrival will take, in whatever order. The order puts
    work off, and makes none of it less: so long the newcomer would have waited behind them. Whoever
    has waited for the tail of these times goes first.
    """

    def __init__(self, instance: int) -> None:
        self._instance = instance
        self._backlogs_s: deque[float] = deque()
        self._sorted: list[float] = []  # the same
        self._not_begun: dict[int, Starvation] = {}  # by priority

    def observe(self, backlog_s: float) -> None:
        """Another arrived, behind so much."""
        if len(self._backlogs_s) == _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._backlogs_s.popleft())]
        self._backlogs_s.append(backlog_s)
        insort(self._sorted, backlog_s)

    @property
    def bound_s(self) -> float:
        """How long one may wait; without end before anybody arrived."""
        return TAIL_SHARE * quantile(self._sorted, TAIL) if self._sorted else math.inf

    def watch(self, sequence: Sequence, num_waiting: int) -> None:
        """One that has not begun waits, as one of so many."""
        not_begun = self._not_begun.get(sequence.priority)
        if not_begun is None:
            # Clients may choose any priority: those with which nobody waits are dropped at times.
            if len(self._not_begun) > 2 * num_waiting + _SPARE:
                self._not_begun = {one: of for one, of in self._not_begun.items() if of.any}
            not_begun = self._not_begun[sequence.priority] = Starvation(self._instance)
        not_begun.watch(sequence, sequence.arrived_s, num_waiting)

    def forget_waiting(self) -> None:
        """All that wait are watched anew, or by nobody."""
        self._not_begun.clear()

    def overdue(self, priority: int, now: float) -> Sequence | None:
        """The first of this priority that has waited too long; None if nobody has."""
        not_begun = self._not_begun.get(priority)
        return not_begun.first(now - self.bound_s) if not_begun else None

    def state(self) -> list[float]:
        """All it has learned, as plain numbers."""
        return list(self._backlogs_s)

    @classmethod
    def restored(cls, instance: int, state: list[float]) -> "StartBound":
        """The bound whose `state` this was, of an instance where nobody waits."""
        bound = cls(instance)
        for backlog_s in state:
            bound.observe(backlog_s)
        return bound
