"""How often a sequence finishes: the honest part of a Retry-After."""

MOST_PROMISED_S = 30.0


class FinishRate:
    """Smoothed time between finishes, and what was promised of the finishes to come."""

    def __init__(self, memory: float = 0.99) -> None:
        self._memory = memory  # what one finish leaves of the weight of those before it
        self._last_s = -1.0
        self._time_s = 0.0
        self._finishes = 0.0
        self._promised_s = 0.0  # the time until which every finish is somebody's

    def resume(self, now: float) -> None:
        """Work begins after a time without any: that time says nothing of the next finish, and
        whoever was told to come back by now has not.
        """
        self._promised_s = now
        if self._last_s >= 0.0:
            self._last_s = now

    def observe(self, now: float, count: int) -> None:
        """`count` >= 1 sequences finished at `now`."""
        if self._last_s >= 0.0:
            kept = self._memory**count
            self._time_s = kept * self._time_s + now - self._last_s
            self._finishes = kept * self._finishes + count
        self._last_s = now

    @property
    def _interval_s(self) -> float:
        return self._time_s / self._finishes if self._finishes else 0.0

    def wait_s(self, count: int) -> float:
        """Expected time until `count` more have finished; a second when nothing is known."""
        return count * self._interval_s if self._finishes else 1.0

    def promise_s(self, now: float, excess: int, count: int) -> float:
        """When one that needs `count` places may come back, where `excess` are lacking: in its turn
        after all that were told so before, so that they do not all come at once.
        """
        earliest_s = now + self.wait_s(excess)
        turn_s = max(earliest_s, self._promised_s + count * self._interval_s)
        self._promised_s = min(turn_s, now + MOST_PROMISED_S)
        return self._promised_s - now
