"""The latest values of a quantity, with mean and quantiles for the next one."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque

import numpy as np

from daemon.length_models.prediction import Float64

_TINY = 1e-6


class Recent:
    """At most `size` values, the oldest forgotten first; mean and quantiles at any time.

    Of some values only a lower bound is known, as of answers that were cut. A bound hands its
    weight over to all larger values in equal parts (Kaplan and Meier's estimate in Efron's form).
    Weight that is left over after the largest value lies at `beyond`, which the caller chooses, or
    at the largest if that is more.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._in_order: deque[tuple[float, bool]] = deque()
        self._sorted = array("d")  # among equals, bounds come last
        self._bounds = array("b")  # 1: a lower bound
        self._num_bounds = 0
        self._sum = 0.0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float, at_least: bool = False) -> None:
        """Add a value; `at_least`: it is a lower bound."""
        if len(self._in_order) == self._size:
            self._forget(*self._in_order.popleft())
        self._in_order.append((value, at_least))
        place = (bisect_right if at_least else bisect_left)(self._sorted, value)
        self._sorted.insert(place, value)
        self._bounds.insert(place, at_least)
        self._num_bounds += at_least
        self._sum += value

    def mean(self, beyond: float = 0.0) -> float:
        """The mean; there is at least one value."""
        if not self._num_bounds:
            return self._sum / len(self)
        weights, rest = self._weights()
        total = float(weights @ np.array(self._sorted))
        return (total + rest * max(beyond, self._sorted[-1])) / len(self)

    def middle(self, beyond: float = 0.0) -> float:
        """The median: half of the values are no larger."""
        return self._at(math.ceil(len(self) / 2), beyond)

    def upper(self, share: float, beyond: float = 0.0) -> float:
        """A bound that the next value is above with a chance of at most `share`, where known.

        Holds for values that come in no particular order (the rank of split conformal prediction).
        """
        rank = math.ceil((len(self) + 1) * (1.0 - share))
        return self._at(min(rank, len(self)), beyond)

    def _at(self, rank: int, beyond: float) -> float:
        """The value at `rank` by weight."""
        if not self._num_bounds:
            return self._sorted[rank - 1]
        place = int(np.searchsorted(self._weights()[0].cumsum(), rank - _TINY))
        return self._sorted[place] if place < len(self) else max(beyond, self._sorted[-1])

    def _weights(self) -> tuple[Float64, float]:
        """[N]: the weight of each value in rising order, and what is left over; N in all."""
        size = len(self)
        ends = 1.0 - np.array(self._bounds)  # a value that is known ends here
        survive = (1.0 - ends / np.arange(size, 0, -1)).cumprod()
        weights = -size * np.diff(survive, prepend=1.0)
        return weights, size * float(survive[-1])

    def _forget(self, value: float, at_least: bool) -> None:
        if at_least:
            place = bisect_right(self._sorted, value) - 1
        else:
            place = bisect_left(self._sorted, value)
        del self._sorted[place], self._bounds[place]
        self._num_bounds -= at_least
        self._sum -= value
