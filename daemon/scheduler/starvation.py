"""Starvation: waiting sequences by the time from which they starve."""

from heapq import heapify, heappop, heappush

from daemon.state.request import State
from daemon.state.sequence import Sequence

_SPARE = 64

_Due = tuple[float, int, float, Sequence]


class Starvation:
    """An index of one instance's waiting sequences by the time from which they starve.

    Sequences that ran since, or went elsewhere, are dropped.
    """

    def __init__(self, instance: int) -> None:
        self._instance = instance
        self._due: list[_Due] = []  # a heap of (starves at, number, waits since, sequence)
        self._number = 0

    @property
    def any(self) -> bool:
        """Whether any watched sequence still waits."""
        return any(map(self._waits, self._due))

    def watch(self, sequence: Sequence, starves_at_s: float, num_waiting: int) -> None:
        """Watch a sequence that waits since `waiting_since_s`, one of `num_waiting`."""
        self._number += 1
        due = (starves_at_s, self._number, sequence.waiting_since_s, sequence)
        heappush(self._due, due)
        if len(self._due) > 2 * num_waiting + _SPARE:
            self._due = [due for due in self._due if self._waits(due)]
            heapify(self._due)

    def first(self, now: float) -> Sequence | None:
        """The sequence that starves longest; None if none does."""
        while self._due and self._due[0][0] <= now:
            if self._waits(self._due[0]):
                return self._due[0][3]
            heappop(self._due)
        return None

    def drop_first(self) -> None:
        """Watch the sequence no longer that `first` named."""
        heappop(self._due)

    def _waits(self, due: _Due) -> bool:
        """Whether its sequence has waited here since then, and still does."""
        _, _, since_s, sequence = due
        waits = sequence.state in (State.WAITING, State.PREEMPTED)
        here = sequence.instance == self._instance and sequence.waiting_since_s == since_s
        return waits and here and not sequence.promoted
