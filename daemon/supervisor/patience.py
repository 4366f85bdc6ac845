"""The wait for an answer until its process must hang. Pure: time is an argument.

Only time that the waiter lived through counts. It looks every `LOOK_S`; of a longer pause between
two looks at most twice that counts: the waiter stood still then, stopped, starved or on a frozen
machine, and maybe the other process did too. A process that is kept from answering, on a machine
without a free processor, does not hang either: it gets more time for as long as that lasts, up to
`TIMES` as much.
"""

from collections.abc import Callable

LOOK_S = 0.25
TIMES = 6.0


class Patience:
    """One answer that is owed, from `begin` on."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self._waited_s = 0.0
        self._excused_s = 0.0
        self._late = False  # seen at the previous look; a late look may come before a late read

    def begin(self, now: float) -> None:
        """The answer is owed from now on."""
        self._seen_s = now
        self._waited_s = 0.0
        self._late = False

    def waited_s(self, now: float) -> float:
        """The time waited, as far as it counts."""
        return self._waited_s + min(now - self._seen_s, 2 * LOOK_S)

    def runs_out(self, now: float, limit_s: float, excused_s: Callable[[], float]) -> bool:
        """Look, every `LOOK_S`: return whether the answer is so late that it will not come.

        `excused_s` returns the seconds, over its life, in which the process was kept from
        answering: `Child.starved_s`, say. It is called only for a late answer, and compared over
        two looks.
        """
        self._waited_s, self._seen_s = self.waited_s(now), now
        if self._waited_s < limit_s:
            return False
        before_s, self._excused_s = self._excused_s, excused_s()
        if not self._late:
            self._late = True
            return False
        excused = self._excused_s - before_s > LOOK_S / 2
        return not excused or self._waited_s >= TIMES * limit_s
