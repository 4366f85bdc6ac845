"""Whether an event loop that answers late goes on, if slowly, or is stuck: as the kernel counts."""

from daemon.supervisor.child import Child
from daemon.supervisor.patience import LOOK_S

_RUNS_S = LOOK_S / 20
"""Of processor time between two looks: less is no work, but asking again and again for a lock."""


class LoopProgress:
    """A process whose first thread is its event loop.

    While it works off a thousand requests that came at once, it shares the interpreter with other
    threads: it runs, and it waits for them. One that computes for ever waits for nobody; one that
    is stopped, or waits for a lock that is never freed, does not run.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._seen = (0.0, 0)
        self._excused_s = 0.0

    def moves(self) -> bool:
        """Whether it went on since this was asked last."""
        (ran_s, waits), self._seen = self._seen, self._child.first_thread()
        return self._seen[0] - ran_s > _RUNS_S and self._seen[1] > waits

    def excused_s(self) -> float:
        """What `Patience` asks for: how long it was kept from answering, in all its life."""
        if self.moves():
            self._excused_s += LOOK_S
        return self._child.starved_s() + self._excused_s
