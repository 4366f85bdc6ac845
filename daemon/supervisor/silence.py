"""Answers that are owed and do not come: awaited once or by repeated pings, on the event loop."""

import asyncio
import time
from collections.abc import Callable

from daemon.supervisor.child import Child
from daemon.supervisor.patience import LOOK_S, Patience

EVERY_S = 0.5
"""Interval between pings."""
MOMENT_S = 0.5
"""Time for an answer that is normal on a busy machine, and no sign of a fault yet."""
STOPPED_S = 2.0
"""Longest time that a process may be stopped by a signal: a debugger or a shell continues it."""


class Silence:
    """Calls `overdue()` once if an answer that a process owes does not come in time.

    The process may not be stopped for longer than `STOPPED_S` meanwhile either. `excused_s` is
    `Patience`'s; by default the time for which the process was starved.
    """

    def __init__(
        self,
        child: Child,
        overdue: Callable[[], None],
        excused_s: Callable[[], float] | None = None,
    ) -> None:
        self._child = child
        self._overdue = overdue
        self._excused_s = excused_s or child.starved_s
        self._patience = Patience()
        self._limit_s = 0.0
        self._num_stopped = 0  # looks in a row at which it was stopped
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expecting(self) -> bool:
        """Whether an answer is owed."""
        return self._timer is not None

    def expect(self, limit_s: float) -> None:
        """An answer is owed from now on; an earlier one is no longer awaited."""
        self.stop()
        self._limit_s = limit_s
        self._num_stopped = 0
        self._patience.begin(time.monotonic())
        self._look_soon()

    def stop(self) -> None:
        """Nothing is owed any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_soon(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        late = self._patience.runs_out(time.monotonic(), self._limit_s, self._excused_s)
        self._num_stopped = self._num_stopped + 1 if self._child.stopped else 0
        if late or self._num_stopped * LOOK_S > STOPPED_S:
            self._overdue()
        else:
            self._look_soon()


class Pulse:
    """Calls `ask()` repeatedly, and `hangs()` once if `answered` is not called in time."""

    def __init__(
        self,
        child: Child,
        ask: Callable[[], None],
        hangs: Callable[[], None],
        limit_s: float,
        excused_s: Callable[[], float] | None = None,
    ) -> None:
        self.limit_s = limit_s
        self._ask = ask
        self._silence = Silence(child, hangs, excused_s)
        self._next: asyncio.TimerHandle | None = None
        self._answered = False
        self._asked_s = 0.0

    def feel(self) -> None:
        """Ask now, and again a while after each answer."""
        self._next = None
        self._asked_s = time.monotonic()
        self._silence.expect(self.limit_s)
        self._ask()

    @property
    def hears(self) -> bool:
        """Whether it has answered before, and owes its next answer for a short time at most."""
        owing = self._silence.expecting and time.monotonic() - self._asked_s > MOMENT_S
        return self._answered and not owing

    def answered(self) -> None:
        """It has answered."""
        self._answered = True
        if self._silence.expecting:
            self._silence.stop()
            self._next = asyncio.get_running_loop().call_later(EVERY_S, self.feel)

    def stop(self) -> None:
        """Ask no more."""
        self._silence.stop()
        if self._next is not None:
            self._next.cancel()
            self._next = None
