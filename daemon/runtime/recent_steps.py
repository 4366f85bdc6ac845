"""How long the steps of the last minute took: counts in buckets, of which a percentile is read."""

import math

import numpy as np

WINDOW_S = 60.0
_TURN_S = 5.0
"""The oldest so many seconds are forgotten together."""
_NUM_TURNS = round(WINDOW_S / _TURN_S)
_SHORTEST_S = 1e-5
_GROWTH = 1.02
"""Each bucket ends so much later than the one before: a percentile is wrong by 1 % at most."""
_NUM_BUCKETS = 850
"""The last ends at 200 s; what takes longer is counted there."""
_LOG_GROWTH = math.log(_GROWTH)


class RecentSteps:
    """The steps of one instance, in rings of counts. Times are the driver's, in seconds."""

    def __init__(self) -> None:
        self._turns: list[tuple[int, list[int]]] = []  # (which turn, counts by bucket)

    def add(self, now: float, elapsed_s: float) -> None:
        """A step that took `elapsed_s` has answered."""
        turn = int(now / _TURN_S)
        if not self._turns or self._turns[-1][0] != turn:
            self._forget(now)
            self._turns.append((turn, [0] * _NUM_BUCKETS))
        self._turns[-1][1][_bucket(elapsed_s)] += 1

    def p99_s(self, now: float) -> float:
        """What 99 of 100 steps of the last minute did not exceed; 0 where there was no step."""
        self._forget(now)
        if not self._turns:
            return 0.0
        sums = np.cumsum(np.sum([counts for _, counts in self._turns], axis=0))
        place = int(np.searchsorted(sums, math.ceil(0.99 * sums[-1])))
        return float(_SHORTEST_S * _GROWTH ** (place - 0.5))

    def _forget(self, now: float) -> None:
        """Drop the turns that began before the window."""
        first = int(now / _TURN_S) - _NUM_TURNS
        while self._turns and self._turns[0][0] <= first:
            del self._turns[0]


def _bucket(elapsed_s: float) -> int:
    """The one that ends at `elapsed_s` or is the first to end after it."""
    if elapsed_s <= _SHORTEST_S:
        return 0
    return min(math.ceil(math.log(elapsed_s / _SHORTEST_S) / _LOG_GROWTH), _NUM_BUCKETS - 1)
