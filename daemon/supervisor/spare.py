"""A spare worker: a process that has done its imports and waits for a model to load.

Importing torch and transformers takes seconds, longer than a small model takes to load, and does
not depend on the model. So one process does it ahead, with idle processor time, and takes the place
of the next worker that dies. Where it can be it is a fork of a worker that was about to load, and
most of what both have imported lies in memory once. A spare that dies or stops answering is
replaced by a new process, which does its imports itself (about 230 MB, none of a GPU's).
"""

import asyncio
import logging
import select
import socket
import time
from collections.abc import Callable, Sequence
from signal import SIGKILL
from typing import NamedTuple

from daemon.protocol.worker import SPARE_PID, Failed, FromWorker
from daemon.supervisor.child import Adopted, Child, start_child
from daemon.supervisor.restarts import Restarts
from daemon.supervisor.silence import Pulse, Silence
from daemon.wire.channel import Channel
from daemon.wire.columns import decoder, encoder
from daemon.wire.faults import in_test_mode
from daemon.wire.parent import adopt
from daemon.wire.pulse import Alive, Ping

log = logging.getLogger(__name__)

IMPORTS_S = 300.0
"""Longest time for its imports, beside its wait for an idle processor."""
HEARS_S = 10.0
"""Longest time that a `Ping` may be unanswered."""
MODULE = "daemon.engine.worker.main"
WORKER = "LLMD_WORKER"
"""Names another module to start as a worker, in test mode alone, for tests that need no model."""


class StartedWorker(NamedTuple):
    """A worker process, and the daemon's ends of its socketpairs."""

    child: Child
    sock: socket.socket  # of messages
    links: socket.socket | None  # for links to other workers alone; None: it has none

    def hang_up(self) -> None:
        """Close both."""
        self.sock.close()
        if self.links is not None:
            self.links.close()


def worker_module() -> str:
    """The module to start as a worker. Raises FaultError where it may not be chosen."""
    return in_test_mode(WORKER) or MODULE


async def start_worker(device: str, *flags: str) -> StartedWorker:
    """Start a worker process that will load a model on a device ("cpu", "cuda:1")."""
    kind = device.partition(":")[0]
    return await with_links(worker_module(), ["--device", kind, *flags])


async def with_links(module: str, arguments: Sequence[str]) -> StartedWorker:
    """Start a process that will receive links to others."""
    # Each message is a packet of its own: its descriptor is read with it.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        flags = ["--links-fd", str(theirs.fileno()), *arguments]
        return StartedWorker(*await start_child(module, flags, [theirs.fileno()]), ours)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()


class Spare:
    """One process in reserve for all workers of a daemon, between `prepare` and `close`."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._held: _Held | None = None
        self._starting = asyncio.Lock()
        self._closing = asyncio.Event()
        self._restarts = Restarts()
        self._replacing: asyncio.Task[None] | None = None
        self._adopting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The process id, 0 while there is none."""
        return self._held.child.pid if self._held is not None and self._held.child.alive else 0

    @property
    def ready(self) -> bool:
        """Whether a process is there that has done its imports and answers."""
        return self._held is not None and self._held.ready

    async def prepare(self) -> None:
        """Start a process unless one waits; called whenever a worker has become ready."""
        await self._adopt_no_more()  # a ready worker has left its fork before, or leaves none
        async with self._starting:
            if self._held is not None or self._closing.is_set():
                return
            try:
                self._held = _Held(await start_worker(self._device, "--spare"), self._lost)
            except OSError as error:
                log.warning("there is no spare worker: %s", error)
            if self._closing.is_set():
                await self._end()

    def asks(self, worker: StartedWorker, device: str) -> bool:
        """Whether a worker that is about to load is to be sent `LeaveSpare`, now: its sockets are.

        `device`: the worker's.
        """
        comes = self._starting.locked() or self._adopting is not None
        busy = self._held is not None or comes or self._closing.is_set()
        other = device.partition(":")[0] != self._device.partition(":")[0]
        if busy or other or worker.links is None or worker_module() != MODULE:
            return False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        links, their_links = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, their_links:
            try:
                adopt(True)
                fds = theirs.fileno(), their_links.fileno()
                socket.send_fds(worker.links, [b"\0"], fds, socket.MSG_DONTWAIT)
            except OSError as error:
                log.debug("no fork of a worker will be the spare: %s", error)
                adopt(False)
                ours.close()
                links.close()
                return False
        self._adopting = asyncio.create_task(self._adopt(ours, links))
        return True

    async def _adopt(self, sock: socket.socket, links: socket.socket) -> None:
        """Hold the fork that a worker leaves, once it tells its process id."""
        links.setblocking(False)
        try:
            message = await asyncio.get_running_loop().sock_recv(links, SPARE_PID.size)
            if message:
                child = Child(Adopted(*SPARE_PID.unpack(message)))
                self._held = _Held(StartedWorker(child, sock, links), self._lost)
        except OSError as error:
            log.debug("a fork of a worker is not the spare: %s", error)
        finally:
            adopt(False)
            self._adopting = None
            if self._held is None:
                sock.close()
                links.close()

    def take(self) -> StartedWorker | None:
        """Hand the ready process over to the caller; None where none is ready.

        One that still imports is left alone: with idle time only, on a busy machine, it could take
        longer than a new process.
        """
        if self._held is None or not self._held.ready:
            return None
        held, self._held = self._held, None
        return held.let_go()

    async def close(self) -> None:
        """End the process, and start none any more."""
        self._closing.set()
        await self._adopt_no_more()
        await self._end()
        if self._replacing is not None:
            await self._replacing

    async def _adopt_no_more(self) -> None:
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.wait([self._adopting])

    async def _end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.let_go().hang_up()
            await held.child.end(0.0, SIGKILL)

    def _lost(self, held: "_Held", why: str) -> None:
        """Replace a process that is dead or useless, unless many were replaced."""
        if held is self._held:
            self._held = None
            log.warning("the spare worker (pid %d) %s", held.child.pid, why)
            held.let_go().hang_up()
            self._replacing = asyncio.create_task(self._replace(held.child))

    async def _replace(self, child: Child) -> None:
        await child.end(0.0, SIGKILL)
        if not self._closing.is_set() and self._restarts.allow(time.monotonic()):
            await self.prepare()


class _Held:
    """The process in reserve: it imports, and from then on it answers pings."""

    def __init__(self, started: StartedWorker, lost: "Callable[[_Held, str], None]") -> None:
        self._started = started
        self.child, self._sock, _ = started
        child, sock = self.child, self._sock
        self._lost = lost
        self._ping = encoder().encode(Ping())
        self._decode = decoder(FromWorker).decode
        self._channel = Channel(sock, self._frame, lambda error: lost(self, f"is gone: {error}"))
        self._imports = Silence(child, lambda: lost(self, "does not end its imports"))
        self._imports.expect(IMPORTS_S)
        self._pulse = Pulse(
            child, lambda: self._channel.send(self._ping), lambda: lost(self, "hangs"), HEARS_S
        )

    @property
    def ready(self) -> bool:
        """Whether it has done its imports, and answers."""
        if self._channel.closed or not self._pulse.hears:
            return False
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        # A process that died a moment ago may not be reaped yet, but has hung up.
        return not poll.poll(0)

    def let_go(self) -> StartedWorker:
        """Stop watching it."""
        self._imports.stop()
        self._pulse.stop()
        self._channel.detach()
        return self._started

    def _frame(self, payload: bytes) -> None:
        message: FromWorker = self._decode(payload)
        if isinstance(message, Failed):
            self._lost(self, f"cannot go on: {message.message}")
        elif isinstance(message, Alive):
            self._pulse.answered()
        else:
            self._imports.stop()
            self._pulse.feel()
