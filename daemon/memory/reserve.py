"""The burst reserve: memory kept for the next burst of arrivals (FastServe section 4.2)."""

from math import exp, sqrt

WINDOW_S = 0.5
"""The window over which arrivals are counted: about the time that making room takes."""
_MEMORY_S = 60.0
_DEVIATIONS = 2.0


class BurstReserve:
    """The blocks that a window's arrivals want: their mean and two deviations, from history.

    Windows are forgotten exponentially over a minute; quiet ones count too. Burstier traffic with
    the same mean gives a larger reserve.
    """

    def __init__(self) -> None:
        self._window_end_s = 0.0
        self._blocks = 0
        self._mean = 0.0
        self._square = 0.0

    def arrived(self, now: float, num_blocks: int) -> None:
        """Count an arrived request that wants `num_blocks`."""
        self._advance(now)
        self._blocks += num_blocks

    def num_blocks(self, now: float) -> int:
        """The reserve at `now`, in blocks."""
        self._advance(now)
        deviation = sqrt(max(0.0, self._square - self._mean * self._mean))
        return round(self._mean + _DEVIATIONS * deviation)

    @property
    def window_end_s(self) -> float:
        """Until when the reserve is the same, but for arrivals."""
        return self._window_end_s

    def state(self) -> tuple[float, float, float, float]:
        """All it has learned, as plain numbers."""
        return self._window_end_s, float(self._blocks), self._mean, self._square

    @classmethod
    def restored(cls, state: tuple[float, float, float, float]) -> "BurstReserve":
        """The reserve whose `state` this was."""
        reserve = cls()
        reserve._window_end_s, blocks, reserve._mean, reserve._square = state
        reserve._blocks = int(blocks)
        return reserve

    def _advance(self, now: float) -> None:
        """Close the windows that have passed; all without an arrival at once."""
        if now < self._window_end_s:
            return
        keep = exp(-WINDOW_S / _MEMORY_S)
        self._mean += (1.0 - keep) * (self._blocks - self._mean)
        self._square += (1.0 - keep) * (self._blocks**2 - self._square)
        self._blocks = 0
        quiet = int((now - self._window_end_s) / WINDOW_S) if self._window_end_s else 0
        self._mean *= keep**quiet
        self._square *= keep**quiet
        self._window_end_s = now + WINDOW_S
