"""The API process: started on a listening socket that outlives it, watched, and started again."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from signal import SIGCONT, SIGKILL, SIGTERM, SIGUSR1
from typing import Protocol

from daemon.supervisor.child import Child, ChildKeeper, start_child
from daemon.supervisor.patience import LOOK_S
from daemon.supervisor.restarts import Restarts
from daemon.supervisor.silence import Pulse

log = logging.getLogger(__name__)

END_GRACE_S = 5.0
HEARS_S = 2.0
"""Longest time without an answer from its event loop."""
LOADS_S = 60.0
"""The same while it starts or reads a tokenizer, which may keep all of its threads waiting."""
STACKS_S = 1.0
"""Time for a hanging process to write its stacks, and to tell its clients if it was
only stopped.
"""


_RUNS_S = LOOK_S / 20
"""Processor time between two looks that counts as work: less is repeated asking for a lock."""


class LoopProgress:
    """The progress of a process whose first thread is its event loop.

    A loop that works off a thousand requests at once shares the interpreter with other threads: it
    runs, and it waits for them. One that computes for ever never waits; one that is stopped, or
    waits for a lock that is never freed, does not run.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._seen = (0.0, 0)
        self._excused_s = 0.0

    def moves(self) -> bool:
        """Whether it made progress since the previous call."""
        (ran_s, waits), self._seen = self._seen, self._child.first_thread()
        return self._seen[0] - ran_s > _RUNS_S and self._seen[1] > waits

    def excused_s(self) -> float:
        """For `Patience`: the seconds, over its life, in which it was kept from answering."""
        if self.moves():
            self._excused_s += LOOK_S
        return self._child.starved_s() + self._excused_s


class Link(Protocol):
    """The daemon's end of one process's socketpair."""

    def ping(self) -> None:
        """Ask whether it hears; `ApiProcess.lives` takes the answer."""

    def hang_up(self) -> None:
        """End its requests, and close; may be called twice."""


class ApiProcess(ChildKeeper):
    """Keeps one API process running until `close`.

    `connect(socket, generation)` takes the daemon's end of each new process's socketpair;
    `hopeless(why)` is called when the process dies more than `restarts` times in a minute.
    """

    def __init__(
        self,
        config_json: str,
        connect: Callable[[socket.socket, int], Link],
        hopeless: Callable[[str], None],
        restarts: int = 5,
    ) -> None:
        super().__init__()
        self.num_deaths = 0
        self._config_json = config_json
        self._connect = connect
        self._hopeless = hopeless
        self._restarts = Restarts(restarts)
        self._pulse: Pulse | None = None
        self._hangs = asyncio.Event()
        self._up = False
        self._generation = 0

    @property
    def up(self) -> bool:
        """Whether there is a process that has answered, and is not known to hang."""
        return self._up

    async def run(self, listener: socket.socket) -> None:
        """Start it, and again whenever it dies or hangs; each process accepts from `listener`."""
        while await self._live_once(listener):
            self._generation += 1

    def lives(self, settled: bool) -> None:
        """It has answered a ping; `settled`: it has loaded all that it needs."""
        self._up = True
        if self._pulse is not None:
            self._pulse.limit_s = HEARS_S if settled else LOADS_S
            self._pulse.answered()

    async def _live_once(self, listener: socket.socket) -> bool:
        """Run one process from its start to its death; return whether another should follow."""
        started = await self._start(listener)
        if started is None:
            return False
        child, sock = started
        link = self._connect(sock, self._generation)
        self._hangs.clear()
        excused_s = LoopProgress(child).excused_s
        self._pulse = Pulse(child, link.ping, self._hangs.set, LOADS_S, excused_s)
        self._pulse.feel()
        status = await self._end_of(child, link)
        self._pulse.stop()
        self._up = False
        if self._closing.is_set():
            return False
        self.num_deaths += 1
        log.error("the API process (pid %d) ended with status %d", child.pid, status)
        if not self._restarts.allow(time.monotonic()):
            self._hopeless(f"the API process ended with status {status}, again and again")
            return False
        return True

    async def _end_of(self, child: Child, link: Link) -> int:
        """Wait until it dies, or end a hanging one; return its exit status."""
        dead = asyncio.ensure_future(child.wait())
        hangs = asyncio.ensure_future(self._hangs.wait())
        await asyncio.wait((dead, hangs), return_when=asyncio.FIRST_COMPLETED)
        hangs.cancel()
        if not dead.done():
            self._up = False
            log.error("the API process (pid %d) hangs; where it is:", child.pid)
            link.hang_up()
            child.signal(SIGUSR1)
            child.signal(SIGCONT)
            await child.end(STACKS_S, ask=None)
            dead.cancel()
            return -SIGKILL
        return dead.result()

    async def _start(self, listener: socket.socket) -> tuple[Child, socket.socket] | None:
        """Start a process; None if `close` came meanwhile and could not end it."""
        descriptor = listener.fileno()
        arguments = ["--listen-fd", str(descriptor), "--config", self._config_json]
        child, sock = await start_child("daemon.api", arguments, [descriptor])
        return (child, sock) if await self._kept(child, sock) else None

    async def close(self) -> None:
        """Let it finish its open requests, then end it."""
        self._closing.set()
        if self._pulse is not None:
            self._pulse.stop()
        if self._child is not None:
            await self._child.end(END_GRACE_S, SIGTERM)
