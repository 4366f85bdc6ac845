"""The latest values of a quantity, and where the next one will lie."""

import math
from bisect import bisect_left, insort
from collections import deque


class Recent:
    """At most `size` values, the oldest forgotten first; mean and quantiles at any time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []
        self._sum = 0.0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """Take one more."""
        if len(self._in_order) == self._size:
            oldest = self._in_order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
            self._sum -= oldest
        self._in_order.append(value)
        insort(self._sorted, value)
        self._sum += value

    @property
    def mean(self) -> float:
        """Of at least one value."""
        return self._sum / len(self._sorted)

    def lower(self, share: float) -> float:
        """The next value is below this with a chance of at most `share`, where that can be told.

        Holds for values that come in no particular order (the rank of split conformal prediction).
        """
        rank = math.floor((len(self._sorted) + 1) * share)
        return self._sorted[max(rank, 1) - 1]

    def upper(self, share: float) -> float:
        """The next value is above this with a chance of at most `share`, likewise."""
        rank = math.ceil((len(self._sorted) + 1) * (1.0 - share))
        return self._sorted[min(rank, len(self._sorted)) - 1]
