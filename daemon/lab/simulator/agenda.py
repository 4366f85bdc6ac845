"""The future events of a simulation, in order of time; ties have a defined order."""

from enum import IntEnum
from heapq import heappop, heappush
from typing import Any


class Rank(IntEnum):
    """The order of events at the same time, lower first; equal ones in order of adding."""

    READY = 0
    COPIED = 1
    ANSWER = 2
    LOSS = 3
    RELOAD = 4
    FLOWED = 5  # bytes have passed a link
    SEND = 6  # a transfer, or what is left of it, may go
    TRANSFERRED = 7
    LINK = 8  # is up, or down once its transfers were answered
    ARRIVAL = 9
    PREDICTION = 10
    OPERATOR = 11  # looks
    INPUT = 12
    WAKE = 13


_OF_STEPS = (Rank.ANSWER, Rank.WAKE)


class Agenda:
    """Two heaps of (time, rank, serial, what): the events of steps, and all others."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, int, int, Any]] = []
        self._others: list[tuple[float, int, int, Any]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._steps) + len(self._others)

    def add(self, time_s: float, rank: Rank, what: Any) -> None:
        """Add a future event."""
        self._serial += 1
        heap = self._steps if rank in _OF_STEPS else self._others
        heappush(heap, (time_s, rank, self._serial, what))

    @property
    def other_s(self) -> float:
        """The time of the next event that is not of a step; infinity if there is none."""
        return self._others[0][0] if self._others else float("inf")

    def pop(self) -> tuple[float, int, Any]:
        """The next (time, rank, what). Raises IndexError when there is none."""
        steps, others = self._steps, self._others
        heap = steps if not others or (steps and steps[0] < others[0]) else others
        time_s, rank, _, what = heappop(heap)
        return time_s, rank, what
