"""A spare worker: a process that has done its imports and waits for a model to load.

Importing torch and transformers takes seconds, more than a small model takes to load, and none of
it depends on the model. So one process does it ahead, with processor time that nobody else wants,
and takes the place of the next worker that dies. It costs memory (about 300 MB, none of a GPU's).
"""

import asyncio
import logging
import select
import socket
from signal import SIGKILL

from daemon.supervisor.child import Child, start_child
from daemon.wire.faults import in_test_mode

log = logging.getLogger(__name__)

WORKER = "LLMD_WORKER"
"""Names another module to start as a worker, for tests that need no model, in test mode alone."""

Started = tuple[Child, socket.socket]
"""A process, and our end of its socketpair."""


def worker_module() -> str:
    """What is started as a worker. Raises FaultError where it may not be chosen."""
    return in_test_mode(WORKER) or "daemon.engine.worker"


async def start_worker(device: str, *flags: str) -> Started:
    """A new worker process that will be told what to load on a device ("cpu", "cuda:1")."""
    kind = device.partition(":")[0]
    return await start_child(worker_module(), ["--device", kind, *flags])


class Spare:
    """One process in reserve for all workers of a daemon, between `prepare` and `close`."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._held: Started | None = None
        self._starting = asyncio.Lock()
        self._closing = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id, 0 while there is none."""
        return self._held[0].pid if self._held is not None and self._held[0].alive else 0

    @property
    def ready(self) -> bool:
        """Whether a process is there that has imported all; it says so, unasked."""
        if not self.pid or self._held is None:
            return False
        poll = select.poll()
        poll.register(self._held[1], select.POLLIN)
        # One that died a moment ago may not be reaped yet, but has hung up.
        return [events for _descriptor, events in poll.poll(0)] == [select.POLLIN]

    async def prepare(self) -> None:
        """Start a process unless one waits already; called whenever a worker has become ready."""
        async with self._starting:
            if self.pid or self._closing.is_set():
                return
            self._drop()
            try:
                self._held = await start_worker(self._device, "--spare")
            except OSError as error:
                log.warning("there is no spare worker: %s", error)
            if self._closing.is_set():
                await self.close()

    def take(self) -> Started | None:
        """The process, whose owner the caller now is; None where none is ready.

        One that still imports is left to it: with idle time alone, on a machine that is never idle,
        it could take longer than a new process.
        """
        if not self.ready:
            return None
        taken, self._held = self._held, None
        return taken

    async def close(self) -> None:
        """End the process, and start none any more."""
        self._closing.set()
        if self._held is not None:
            child = self._held[0]
            self._drop()
            await child.end(0.0, SIGKILL)

    def _drop(self) -> None:
        """Let go of a process, dead or to be ended."""
        if self._held is not None:
            self._held[1].close()
            self._held = None
