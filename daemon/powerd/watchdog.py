"""systemd's watchdog, fed by llmd-powerd's own loop: one that a driver holds up feeds nobody."""

import math
import time

from daemon.base import notify


class PowerWatchdog:
    """Fed at most twice in the interval that the service manager has asked for."""

    def __init__(self) -> None:
        self._interval_s = notify.watchdog_s() / 2
        self.due_s = 0.0 if self._interval_s else math.inf
        """When it has to be fed again, by the monotonic clock."""

    def feed(self) -> None:
        """The loop turns; costs nothing before it is due."""
        if (now := time.monotonic()) >= self.due_s:
            notify.alive()
            self.due_s = now + self._interval_s
