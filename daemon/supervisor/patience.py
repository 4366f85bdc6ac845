"""How long an answer is waited for before whoever owes it must hang. Pure: time is an argument.

Only time counts that the waiter lived through. It looks every `LOOK_S` while it waits; of a longer
pause between two looks no more than twice that counts: the waiter stood still then, stopped or
starved or on a machine that was frozen, and so, maybe, did the other. Nor does a process hang that
is kept from answering, by a machine that has no processor for it: it is given more time for as long
as that lasts, up to `TIMES` as much.
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
        self._late = False  # it was seen to be; whoever looks late has read late too

    def begin(self, now: float) -> None:
        """It is owed from now on."""
        self._seen_s = now
        self._waited_s = 0.0
        self._late = False

    def waited_s(self, now: float) -> float:
        """For how long, as far as that counts."""
        return self._waited_s + min(now - self._seen_s, 2 * LOOK_S)

    def runs_out(self, now: float, limit_s: float, excused_s: Callable[[], float]) -> bool:
        """Look, every `LOOK_S`: whether the answer is so late that it will not come.

        `excused_s` tells for how many seconds whoever owes it was kept from answering, in all its
        life: `Child.starved_s`, say. It is asked only about what is late, and looked at twice.
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
