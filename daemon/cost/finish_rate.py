"""How often a sequence finishes: the honest part of a Retry-After."""


class FinishRate:
    """Smoothed time between finishes."""

    def __init__(self, memory: float = 0.9) -> None:
        self._memory = memory
        self._last_s = -1.0
        self._interval_s = 0.0

    def resume(self, now: float) -> None:
        """Work begins after a time without any: that time says nothing of the next finish."""
        if self._last_s >= 0.0:
            self._last_s = now

    def observe(self, now: float, count: int) -> None:
        """`count` >= 1 sequences finished at `now`."""
        if self._last_s >= 0.0:
            interval_s = (now - self._last_s) / count
            share = 1.0 - self._memory if self._interval_s else 1.0
            self._interval_s += share * (interval_s - self._interval_s)
        self._last_s = now

    def wait_s(self, count: int) -> float:
        """Expected time until `count` more have finished; a second when nothing is known."""
        return count * self._interval_s if self._interval_s else 1.0
