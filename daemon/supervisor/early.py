"""The first worker, started before it is known what it will load: it imports meanwhile.

A model that is new is looked at, and made ready, for seconds, and importing torch takes as long.
One that turns out to be of another kind than is needed, or dies, is of no use: another one is
started.
"""

import logging
from signal import SIGKILL

from daemon.supervisor.spare import StartedWorker, start_worker

log = logging.getLogger(__name__)


class EarlyWorker:
    """One process, between `start` and `close`, until somebody takes it."""

    def __init__(self, kind: str) -> None:
        """`kind` of device that it is likely to compute on: "cpu" or "cuda"."""
        self._kind = kind
        self._started: StartedWorker | None = None

    async def start(self) -> None:
        """Start it; where that fails it is done without."""
        try:
            self._started = await start_worker(self._kind)
        except OSError as error:
            log.warning("no worker is started early: %s", error)

    def take(self, device: str) -> StartedWorker | None:
        """The process, whose owner the caller now is; None where it is of no use for a device."""
        started = self._started
        if started is None or device.partition(":")[0] != self._kind or not started.child.alive:
            return None
        self._started = None
        return started

    async def close(self) -> None:
        """End the process, unless it was taken."""
        started, self._started = self._started, None
        if started is not None:
            started.hang_up()
            await started.child.end(0.0, SIGKILL)
