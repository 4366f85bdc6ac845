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

    async def run(self) -> None:
        """Start it, and again whenever it dies."""
        while await self._live_once():
            self._generation += 1

    async def _live_once(self) -> bool:
        """One process from its start to its death; whether another should follow."""
        descriptor = self._listener.fileno()
        arguments = ["--listen-fd", str(descriptor), "--config", self._config_json]
        self._child, sock = await start_child("daemon.api", arguments, [descriptor])
        self._connect(sock, self._generation)
        status = await self._child.wait()
        if self._closing:
            return False
        log.error("the API process (pid %d) ended with status %d", self._child.pid, status)
        if not self._restarts.allow(time.monotonic()):
            self._hopeless(f"the API process ended with status {status}, again and again")
            return False
        return True

    async def close(self) -> None:
        """Let it finish what is open, then end it."""
        self._closing = True
        if self._child is not None:
            await self._child.end(END_GRACE_S, signal.SIGTERM)
