"""The bound on the wait of a sequence before it begins."""

import math
from bisect import bisect_left, insort
from collections import deque

from daemon.scheduler.ageing import quantile
from daemon.scheduler.starvation import Starvation
from daemon.state.sequence import Sequence

TAIL = 0.99
TAIL_SHARE = 0.75
"""The share of the tail after which a sequence is overdue: it then waits for room as well."""

_WINDOW = 512
_SPARE = 64


class StartBound:
    """The longest wait of sequences that have not begun: as long as first come first served would
    have made the slowest recent ones wait.

    That is the time that all sequences waiting at an arrival take, in any order: the newcomer would
    have waited behind them. A sequence that has waited for the tail of these times goes first.
    """

    def __init__(self, instance: int) -> None:
        self._instance = instance
        self._backlogs_s: deque[float] = deque()
        self._sorted: list[float] = []  # the same
        self._not_begun: dict[int, Starvation] = {}  # by priority

    def observe(self, backlog_s: float) -> None:
        """Learn from an arrival behind `backlog_s` of work."""
        if len(self._backlogs_s) == _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._backlogs_s.popleft())]
        self._backlogs_s.append(backlog_s)
        insort(self._sorted, backlog_s)

    @property
    def bound_s(self) -> float:
        """The longest wait; infinite before the first arrival."""
        return TAIL_SHARE * quantile(self._sorted, TAIL) if self._sorted else math.inf

    def watch(self, sequence: Sequence, num_waiting: int) -> None:
        """Watch a waiting sequence that has not begun, one of `num_waiting`."""
        not_begun = self._not_begun.get(sequence.priority)
        if not_begun is None:
            # Clients may choose any priority: those without a waiting sequence are dropped at
            # times.
            if len(self._not_begun) > 2 * num_waiting + _SPARE:
                self._not_begun = {
                    priority: starving
                    for priority, starving in self._not_begun.items()
                    if starving.any
                }
            not_begun = self._not_begun[sequence.priority] = Starvation(self._instance)
        not_begun.watch(sequence, sequence.arrived_s, num_waiting)

    def forget_waiting(self) -> None:
        """Watch no sequence any more."""
        self._not_begun.clear()

    def overdue(self, priority: int, now: float) -> Sequence | None:
        """The first sequence of a priority that has waited too long; None if none has."""
        not_begun = self._not_begun.get(priority)
        return not_begun.first(now - self.bound_s) if not_begun else None

    def state(self) -> list[float]:
        """The learned state, as plain numbers."""
        return list(self._backlogs_s)

    @classmethod
    def restored(cls, instance: int, state: list[float]) -> "StartBound":
        """The bound with this `state`, of an instance without waiting sequences."""
        bound = cls(instance)
        for backlog_s in state:
            bound.observe(backlog_s)
        return bound
