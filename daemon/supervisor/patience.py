"""How long an answer is waited for before whoever owes it must hang. Pure: time is an argument.

Only time counts that the waiter lived through. It looks every `LOOK_S` while it waits; of a longer
pause between two looks no more than twice that counts: the waiter stood still then, stopped or
starved or on a machine that was frozen, and so, maybe, did the other. Nor does a process hang that
gets no processor: it is given more time for as long as it waits for one, up to `TIMES` as much.
"""

from collections.abc import Callable

LOOK_S = 0.25
TIMES = 6.0


class Patience:
    """One answer that is owed, from `begin` on."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self._waited_s = 0.0
        self._starved_s = 0.0
        self._late = False  # it was seen to be; whoever looks late has read late too

    def begin(self, now: float) -> None:
        """It is owed from now on."""
        self._seen_s = now
        self._waited_s = 0.0
        self._late = False

    def waited_s(self, now: float) -> float:
        """For how long, as far as that counts."""
        return self._waited_s + min(now - self._seen_s, 2 * LOOK_S)

    def runs_out(self, now: float, limit_s: float, starved_s: Callable[[], float]) -> bool:
        """Look, every `LOOK_S`: whether the answer is so late that it will not come.

        `starved_s` tells for how many seconds the threads of whoever owes it have waited for a
        processor, in all its life; it is asked only about what is late, and looked at twice.
        """
        self._waited_s, self._seen_s = self.waited_s(now), now
        if self._waited_s < limit_s:
            return False
        before_s, self._starved_s = self._starved_s, starved_s()
        if not self._late:
            self._late = True
            return False
        starves = self._starved_s - before_s > LOOK_S / 2
        return not starves or self._waited_s >= TIMES * limit_s
