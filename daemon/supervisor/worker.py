"""One instance's worker process: started, loaded, watched, started again."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from signal import SIGKILL

import msgspec

from daemon.engine.protocol import (
    Copied,
    Failed,
    FromWorker,
    Load,
    Loading,
    Plan,
    Ready,
    Reply,
    Shutdown,
)
from daemon.supervisor.child import Child, start_child
from daemon.supervisor.restarts import Restarts
from daemon.wire.channel import Channel
from daemon.wire.columns import decoder, encoder

log = logging.getLogger(__name__)

END_GRACE_S = 5.0


class WorkerHooks(msgspec.Struct, frozen=True):
    """Whom to tell: each takes the instance's index first."""

    loading: Callable[[int, Loading], None]
    ready: Callable[[int, Ready], None]
    reply: Callable[[int, Reply], None]
    lost: Callable[[int], None]
    hopeless: Callable[[int, str], None]
    copied: Callable[[int, Copied], None] = lambda _instance, _copied: None


class WorkerProcess:
    """Keeps one worker running until `close`; a worker that fails while loading is hopeless."""

    def __init__(self, instance: int, name: str, load: Load, hooks: WorkerHooks) -> None:
        self.instance = instance
        self.name = name
        self._load = load
        self._hooks = hooks
        self._encode = encoder().encode
        self._decode = decoder(FromWorker).decode
        self._channel: Channel | None = None
        self._child: Child | None = None
        self._restarts = Restarts()
        self._ready = False  # this process can compute
        self._served = False  # one of its kind could, once
        self._closing = False
        self._error = ""
        self._hung_up = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id of the worker, 0 while there is none."""
        return self._child.pid if self._child is not None and self._child.alive else 0

    async def run(self) -> None:
        """Start it, and again whenever it dies, until closed or hopeless."""
        while await self._live_once():
            self._hooks.lost(self.instance)

    async def _live_once(self) -> bool:
        """One process from its start to its death; whether another should follow."""
        started = await self._start()
        if started is None:
            return False
        child, sock = started
        self._ready = False
        self._error = ""
        self._hung_up = asyncio.Event()
        self._channel = Channel(sock, self._frame, self._closed)
        self._channel.send(self._encode(self._load))
        status = await self._last_words(child)
        self._lose()
        if self._closing:
            return False
        why = self._error or f"exit status {status}"
        log.error("worker %s (pid %d) died: %s", self.name, child.pid, why)
        if not self._served or not self._restarts.allow(time.monotonic()):
            self._hooks.hopeless(self.instance, f"worker {self.name}: {why}")
            return False
        return True

    async def _start(self) -> tuple[Child, socket.socket] | None:
        """A new process; None if `close` came while it was being started and could not end it."""
        child, sock = await start_child("daemon.engine.worker", ["--rank", "0"])
        if self._closing:
            sock.close()
            await child.end(0.0, SIGKILL)
            return None
        self._child = child
        return child, sock

    def send(self, plan: Plan) -> None:
        """Hand it a plan; a dead worker's plans are computed again by its successor."""
        if self._channel is not None:
            self._channel.send(self._encode(plan))

    async def close(self) -> int:
        """Let it finish its step and exit, or kill it; its exit status, 0 if there is none."""
        self._closing = True
        if self._channel is not None:
            self._channel.send(self._encode(Shutdown()))
        if self._child is None:
            return 0
        # While it loads there is no step to finish, and it hears nothing.
        return await self._child.end(END_GRACE_S if self._ready else 0.0, ask=None)

    def _frame(self, payload: bytes) -> None:
        message: FromWorker = self._decode(payload)
        match message:
            case Reply():
                self._hooks.reply(self.instance, message)
            case Copied():
                self._hooks.copied(self.instance, message)
            case Loading():
                self._hooks.loading(self.instance, message)
            case Ready():
                self._ready = self._served = True
                self._hooks.ready(self.instance, message)
            case Failed():
                self._error = message.message

    async def _last_words(self, child: Child) -> int:
        """Wait until it has hung up and all it sent is read, then for its exit status."""
        await self._hung_up.wait()
        return await child.end(END_GRACE_S, ask=None)

    def _closed(self, error: str) -> None:
        self._hung_up.set()

    def _lose(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
