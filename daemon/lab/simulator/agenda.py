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
    INPUT = 11
    WAKE = 12


class Agenda:
    """A heap of (time, rank, serial, what)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Any]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, time_s: float, rank: Rank, what: Any) -> None:
        """Add a future event."""
        self._serial += 1
        heappush(self._heap, (time_s, rank, self._serial, what))

    def pop(self) -> tuple[float, int, Any]:
        """The next (time, rank, what). Raises IndexError when there is none."""
        time_s, rank, _, what = heappop(self._heap)
        return time_s, rank, what
