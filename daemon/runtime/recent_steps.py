"""The durations of the last minute's steps: counts in buckets, from which a percentile is read."""

import math

import numpy as np

WINDOW_S = 60.0
_PERIOD_S = 5.0
"""Steps are forgotten in groups of this many seconds."""
_NUM_PERIODS = round(WINDOW_S / _PERIOD_S)
_SHORTEST_S = 1e-5
_GROWTH = 1.02
"""Each bucket's end over the one before: a percentile is wrong by 1 % at most."""
_NUM_BUCKETS = 850
"""The last one ends at 200 s, and counts everything longer."""
_LOG_GROWTH = math.log(_GROWTH)


class RecentSteps:
    """The steps of one instance, in rings of counts. Times are the driver's, in seconds."""

    def __init__(self) -> None:
        self._turns: list[tuple[int, list[int]]] = []  # (number of the period, counts by bucket)

    def add(self, now: float, elapsed_s: float) -> None:
        """A step that took `elapsed_s` has answered."""
        period = int(now / _PERIOD_S)
        if not self._turns or self._turns[-1][0] != period:
            self._forget(now)
            self._turns.append((period, [0] * _NUM_BUCKETS))
        self._turns[-1][1][_bucket(elapsed_s)] += 1

    def p99_s(self, now: float) -> float:
        """The 99th percentile of the last minute's steps; 0 where there was no step."""
        self._forget(now)
        if not self._turns:
            return 0.0
        sums = np.cumsum(np.sum([counts for _, counts in self._turns], axis=0))
        place = int(np.searchsorted(sums, math.ceil(0.99 * sums[-1])))
        return float(_SHORTEST_S * _GROWTH ** (place - 0.5))

    def _forget(self, now: float) -> None:
        """Drop the periods that began before the window."""
        first = int(now / _PERIOD_S) - _NUM_PERIODS
        while self._turns and self._turns[0][0] <= first:
            del self._turns[0]


def _bucket(elapsed_s: float) -> int:
    """The bucket of a duration: the first whose end is not before it."""
    if elapsed_s <= _SHORTEST_S:
        return 0
    return min(math.ceil(math.log(elapsed_s / _SHORTEST_S) / _LOG_GROWTH), _NUM_BUCKETS - 1)
