"""The predictor process: started by the API process, started again, and never waited for.

It is the API's child, not the daemon's: prompts are text only there. A hanging one is killed, and
another one follows.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from signal import SIGKILL

import msgspec

from daemon.protocol.predictor import Ask, Estimate, ToPredictor
from daemon.supervisor.child import Child, ChildKeeper, start_child
from daemon.supervisor.restarts import Restarts
from daemon.supervisor.silence import Silence
from daemon.wire.channel import Channel

log = logging.getLogger(__name__)

END_GRACE_S = 2.5
"""Time for it to save what it has learned."""
ANSWER_S = 30.0
"""Longest time without an answer while asks are open; then the process hangs and is killed."""
FIRST_ANSWER_S = 180.0
"""The same before its first answer: it loads its models, maybe from a cold disk."""
REST_S = 60.0
"""Pause after many deaths: llmd serves without predictions, so there is no hurry."""


class PredictorHooks(msgspec.Struct, frozen=True):
    """The callbacks of a `PredictorProcess`."""

    up: Callable[[], None]  # asks can be sent
    estimated: Callable[[Estimate], None]
    lost: Callable[[], None]  # open asks will not be answered


class PredictorProcess(ChildKeeper):
    """Keeps one predictor process running until `close`."""

    def __init__(self, arguments: Sequence[str], hooks: PredictorHooks) -> None:
        super().__init__()
        self._arguments = arguments
        self._hooks = hooks
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Estimate).decode
        self._channel: Channel | None = None
        self._restarts = Restarts()
        self._hung_up = asyncio.Event()
        self._num_out = 0  # asks that are not answered
        self._limit_s = FIRST_ANSWER_S
        self._answer: Silence | None = None  # the next one

    @property
    def up(self) -> bool:
        """Whether a message would reach a process."""
        return self._channel is not None

    async def run(self) -> None:
        """Start it, and again whenever it dies; after many deaths in a row, a minute later."""
        while await self._live_once():
            if not self._restarts.allow(time.monotonic()):
                log.error("no predictions for %.0f s: their process dies again and again", REST_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), REST_S)

    def send(self, message: ToPredictor) -> None:
        """Send a message; without a process it is lost."""
        if self._channel is None:
            return
        self._channel.send(self._encode(message))
        if isinstance(message, Ask):
            self._num_out += 1
            if self._answer is not None and not self._answer.expecting:
                self._answer.expect(self._limit_s)

    async def close(self) -> None:
        """Hang up, let it save what it has learned, and end it if that takes too long."""
        self._closing.set()
        self._hang_up()
        self._hung_up.set()
        if self._child is not None:
            await self._child.end(END_GRACE_S, ask=None)

    async def _live_once(self) -> bool:
        """Run one process from its start to its death; return whether another should follow."""
        started = None if self._closing.is_set() else await self._start()
        if started is None:
            return False
        child, sock = started
        self._hung_up.clear()
        self._num_out, self._limit_s = 0, FIRST_ANSWER_S
        self._answer = Silence(child, self._overdue)
        self._channel = Channel(sock, self._frame, self._closed)
        self._hooks.up()
        await self._hung_up.wait()
        self._hang_up()
        self._hooks.lost()
        status = await child.end(END_GRACE_S, ask=None)
        if self._closing.is_set():
            return False
        log.error("the predictor process (pid %d) ended with status %d", child.pid, status)
        return True

    async def _start(self) -> tuple[Child, socket.socket] | None:
        """Start a process; None if `close` came meanwhile and could not end it."""
        child, sock = await start_child("daemon.predictor.process", self._arguments)
        return (child, sock) if await self._kept(child, sock) else None

    def _frame(self, payload: bytes) -> None:
        try:
            message = self._decode(payload)
        except msgspec.MsgspecError as error:
            self._kill(f"sent no valid answer: {error}")
            return
        self._num_out, self._limit_s = max(0, self._num_out - 1), ANSWER_S
        if self._answer is not None:
            self._answer.stop()
            if self._num_out:
                self._answer.expect(self._limit_s)
        self._hooks.estimated(message)

    def _overdue(self) -> None:
        stopped = self._child is not None and self._child.stopped
        self._kill("is stopped" if stopped else f"gave no answer in {self._limit_s:g} s")

    def _kill(self, why: str) -> None:
        """End a useless process; another one follows."""
        if self._child is not None:
            log.error("the predictor process (pid %d) %s", self._child.pid, why)
            self._child.signal(SIGKILL)
        self._hung_up.set()

    def _closed(self, error: str) -> None:
        self._hung_up.set()

    def _hang_up(self) -> None:
        if self._answer is not None:
            self._answer.stop()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
