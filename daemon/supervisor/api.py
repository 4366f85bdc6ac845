"""The API process: started on a listening socket that outlives it, and started again."""

import logging
import signal
import socket
import time
from collections.abc import Callable

from daemon.supervisor.child import Child, start_child
from daemon.supervisor.restarts import Restarts

log = logging.getLogger(__name__)

END_GRACE_S = 5.0


class ApiProcess:
    """Keeps one API process running until `close`.

    `connect(socket, generation)` takes our end of each new process's socketpair; `hopeless(why)`
    is called when it dies again and again.
    """

    def __init__(
        self,
        listener: socket.socket,
        config_json: str,
        connect: Callable[[socket.socket, int], None],
        hopeless: Callable[[str], None],
    ) -> None:
        self._listener = listener
        self._config_json = config_json
        self._connect = connect
        self._hopeless = hopeless
        self._restarts = Restarts()
        self._child: Child | None = None
        self._generation = 0
        self._closing = False

    @property
    def pid(self) -> int:
        """The process id, 0 while there is none."""
        return self._child.pid if self._child is not None and self._child.alive else 0

    async def run(self) -> None:
        """Start it, and again whenever it dies."""
        while await self._live_once():
            self._generation += 1

    async def _live_once(self) -> bool:
        """One process from its start to its death; whether another should follow."""
        started = await self._start()
        if started is None:
            return False
        child, sock = started
        self._connect(sock, self._generation)
        status = await child.wait()
        if self._closing:
            return False
        log.error("the API process (pid %d) ended with status %d", child.pid, status)
        if not self._restarts.allow(time.monotonic()):
            self._hopeless(f"the API process ended with status {status}, again and again")
            return False
        return True

    async def _start(self) -> tuple[Child, socket.socket] | None:
        """A new process; None if `close` came while it was being started and could not end it."""
        descriptor = self._listener.fileno()
        arguments = ["--listen-fd", str(descriptor), "--config", self._config_json]
        child, sock = await start_child("daemon.api", arguments, [descriptor])
        if self._closing:
            sock.close()
            await child.end(0.0, signal.SIGKILL)
            return None
        self._child = child
        return child, sock

    async def close(self) -> None:
        """Let it finish what is open, then end it."""
        self._closing = True
        if self._child is not None:
            await self._child.end(END_GRACE_S, signal.SIGTERM)
