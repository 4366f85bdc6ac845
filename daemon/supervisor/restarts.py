"""A limit on restarts: a child that dies again and again is not started once more."""

from collections import deque


class Restarts:
    """Counts restarts within a window; time comes in as an argument."""

    def __init__(self, most: int = 5, window_s: float = 60.0) -> None:
        self._most = most
        self._window_s = window_s
        self._times: deque[float] = deque()

    def allow(self, now: float) -> bool:
        """Whether one more restart is allowed; if so it is counted."""
        while self._times and now - self._times[0] > self._window_s:
            self._times.popleft()
        if len(self._times) >= self._most:
            return False
        self._times.append(now)
        return True
