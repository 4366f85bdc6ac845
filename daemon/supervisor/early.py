"""The first worker, started before its model is known, so that it imports meanwhile.

Inspecting and preparing a new model takes seconds, and so does importing torch. If the worker turns
out to be of the wrong kind, or dies, another one is started.
"""

import logging
from signal import SIGKILL

from daemon.supervisor.spare import StartedWorker, start_worker

log = logging.getLogger(__name__)


class EarlyWorker:
    """One process, between `start` and `close`, until it is taken."""

    def __init__(self, kind: str) -> None:
        """`kind`: the device that it will probably compute on, "cpu" or "cuda"."""
        self._kind = kind
        self._started: StartedWorker | None = None

    async def start(self) -> None:
        """Start it; on a failure there is no early worker."""
        try:
            self._started = await start_worker(self._kind)
        except OSError as error:
            log.warning("no worker is started early: %s", error)

    def take(self, device: str) -> StartedWorker | None:
        """Hand the process over to the caller; None where it cannot serve the device."""
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
