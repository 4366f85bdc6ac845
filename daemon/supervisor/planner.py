"""The planner process: started by the daemon where `plan.auto` is set, and never waited for.

It gives an operator's orders over the control socket; here it only tells its plan.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from daemon.protocol.plan import PlanStatus
from daemon.supervisor.child import ChildKeeper, start_child
from daemon.supervisor.restarts import Restarts
from daemon.wire.channel import Channel

log = logging.getLogger(__name__)

END_GRACE_S = 1.0
REST_S = 60.0
"""Pause after many deaths: llmd serves without plans, so there is no hurry."""


class PlannerProcess(ChildKeeper):
    """Keeps one planner process running until `close`; `on_plan` receives its plans."""

    def __init__(self, arguments: Sequence[str], on_plan: Callable[[PlanStatus], None]) -> None:
        super().__init__()
        self._arguments, self._on_plan = arguments, on_plan
        self._decode = msgspec.msgpack.Decoder(PlanStatus).decode
        self._restarts = Restarts()
        self._hung_up = asyncio.Event()

    async def run(self) -> None:
        """Start it, and again whenever it dies; after many deaths in a row, a minute later."""
        while await self._live_once():
            if not self._restarts.allow(time.monotonic()):
                log.error("no plans for %.0f s: their process dies again and again", REST_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), REST_S)

    async def close(self) -> None:
        """End it at once: whatever it searches is of no use any more."""
        self._closing.set()
        self._hung_up.set()
        if self._child is not None:
            await self._child.end(END_GRACE_S)

    async def _live_once(self) -> bool:
        """Run one process from its start to its death; return whether another should follow."""
        if self._closing.is_set():
            return False
        child, sock = await start_child("daemon.lab.autoplan.process", self._arguments)
        if not await self._kept(child, sock):
            return False
        self._hung_up.clear()
        channel = Channel(sock, self._frame, lambda _error: self._hung_up.set())
        await self._hung_up.wait()
        channel.close()
        self._on_plan(PlanStatus())
        status = await child.end(END_GRACE_S)
        if self._closing.is_set():
            return False
        log.error("the planner process (pid %d) ended with status %d", child.pid, status)
        return True

    def _frame(self, payload: bytes) -> None:
        try:
            self._on_plan(self._decode(payload))
        except msgspec.MsgspecError as error:
            log.error("the planner process sent no valid plan: %s", error)
            self._hung_up.set()
