"""The rate at which sequences finish, which a Retry-After rests on."""

MOST_PROMISED_S = 30.0


class FinishRate:
    """The smoothed time between finishes, and the finishes already promised to refused clients."""

    def __init__(self, memory: float = 0.99) -> None:
        self._memory = memory  # the weight of earlier finishes falls by this factor with each
        self._last_s = -1.0
        self._time_s = 0.0
        self._finishes = 0.0
        self._promised_s = 0.0  # all finishes up to then are promised

    def resume(self, now: float) -> None:
        """Forget the idle time before work begins: it says nothing of the next finish, and the
        clients that were to come back by now have not.
        """
        self._promised_s = now
        if self._last_s >= 0.0:
            self._last_s = now

    def observe(self, now: float, count: int) -> None:
        """Count `count` >= 1 sequences that finished at `now`."""
        if self._last_s >= 0.0:
            kept = self._memory**count
            self._time_s = kept * self._time_s + now - self._last_s
            self._finishes = kept * self._finishes + count
        self._last_s = now

    @property
    def _interval_s(self) -> float:
        return self._time_s / self._finishes if self._finishes else 0.0

    def wait_s(self, count: int) -> float:
        """The expected time until `count` more have finished; a second when nothing is known."""
        return count * self._interval_s if self._finishes else 1.0

    def promise_s(self, now: float, excess: int, count: int) -> float:
        """The time until a request that needs `count` places may come back, where `excess` are
        lacking: after all that were refused before it, so that they do not all come at once.
        """
        earliest_s = now + self.wait_s(excess)
        retry_s = max(earliest_s, self._promised_s + count * self._interval_s)
        self._promised_s = min(retry_s, now + MOST_PROMISED_S)
        return self._promised_s - now
