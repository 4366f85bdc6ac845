"""Ageing: the work that an earlier arrival outweighs, set by the live tail of JCTs."""

import math
from collections import deque

from daemon.state.sequence import Sequence

TAIL_SHARE = 0.25
"""A waiting sequence that costs e times as much as another goes first if it came this share of the
tail earlier. More shortens the mean and lengthens the tail."""

TAIL = 0.95
FIRST_TAIL_S = 25.0
_WINDOW = 256
_RENEW = 16
_CHANGE = 0.1


class Ageing:
    """Ranks by cost and arrival: `scale_s` * log(cost) + arrival.

    All age alike, so that ageing moves no sequence within a queue; and as it is the ratio of costs
    that age makes up for, it is the same in every unit, on every machine. The scale is a share of
    the tail of the latest JCTs: where none has to wait long, order by arrival is as good as any,
    and where all wait long, a little more hurts the longest answers little.
    """

    def __init__(self) -> None:
        self.scale_s = TAIL_SHARE * FIRST_TAIL_S
        self._jcts_s: deque[float] = deque(maxlen=_WINDOW)
        self._num_fresh = 0

    def rank(self, cost: float, sequence: Sequence) -> float:
        """A sequence's rank, in seconds."""
        return self.scale_s * math.log(max(cost, 1e-12)) + sequence.arrived_s

    def lead_s(self, factor: float) -> float:
        """The lead in rank of a sequence that costs `factor` times less."""
        return self.scale_s * math.log(factor)

    def observe(self, jct_s: float, may_change: bool = True) -> bool:
        """Learn from an answer's JCT; whether that changed the ranks, if it may."""
        self._jcts_s.append(jct_s)
        self._num_fresh += 1
        if self._num_fresh < _RENEW or not may_change:
            return False
        self._num_fresh = 0
        scale_s = max(1e-6, TAIL_SHARE * quantile(sorted(self._jcts_s), TAIL))
        changed = abs(scale_s - self.scale_s) > _CHANGE * self.scale_s
        if changed:
            self.scale_s = scale_s
        return changed

    def state(self) -> tuple[float, int, list[float]]:
        """The learned state, as plain numbers."""
        return self.scale_s, self._num_fresh, list(self._jcts_s)

    @classmethod
    def restored(cls, state: tuple[float, int, list[float]]) -> "Ageing":
        """The ageing with this `state`."""
        ageing = cls()
        ageing.scale_s, ageing._num_fresh = state[:2]
        ageing._jcts_s.extend(state[2])
        return ageing


def quantile(ordered: list[float], share: float) -> float:
    """The quantile of these numbers, linear between two of them: equal to numpy's to the last bit,
    which takes a hundred times as long for so few.
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    part = place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1.0 - part)
