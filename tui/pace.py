"""How fast one sequence's answer grows: differences over its daemon's clock. Pure."""

from collections import deque

INTERVAL_S = 0.4
WINDOW_S = 3.0
LENGTH = 600


class Pace:
    """Tokens per second of one sequence, as long as somebody looks."""

    def __init__(self) -> None:
        self.values: list[float | None] = []
        self._seen: deque[tuple[float, int]] = deque(maxlen=LENGTH)

    def add(self, time_s: float, num_tokens: int) -> None:
        """So many tokens at this time; what is not newer than the last adds nothing."""
        if not self._seen:
            self._seen.append((time_s, num_tokens))
            return
        last_s, last = self._seen[-1]
        if time_s - last_s < INTERVAL_S:
            return
        self._seen.append((time_s, num_tokens))
        self.values.append(max(0, num_tokens - last) / (time_s - last_s))
        del self.values[:-LENGTH]

    def now(self) -> float | None:
        """The mean of the last seconds; None before there are two moments."""
        if len(self._seen) < 2:
            return None
        newest_s, newest = self._seen[-1]
        old_s, old = next(one for one in self._seen if newest_s - one[0] <= WINDOW_S)
        if old_s == newest_s:
            old_s, old = self._seen[-2]
        return max(0, newest - old) / (newest_s - old_s)
