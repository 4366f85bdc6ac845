"""Tasks that move sequences between two instances without a pause, and kill workers."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from functools import partial

from daemon.control.client import (
    ControlError,
    drain_instance,
    flip,
    migrate,
    resume_instance,
)
from daemon.protocol.control import Snapshot
from tests.chaos.strikes import Order, Strikes
from tests.e2e.live import LiveDaemon

CALL_S = 30.0
ORDER_S = 10.0
"""An order that nobody could carry out for so long is withdrawn."""
PAUSE_S = 0.02


class Mover:
    """An operator who changes his mind: moves sequences, twice at times, flips, drains, resumes."""

    def __init__(self, daemon: LiveDaemon, seed: int) -> None:
        self.going = True
        self._daemon = daemon
        self._chance = random.Random(seed)

    async def live(self) -> None:
        """Move something again and again."""
        while self.going:
            seen = await asyncio.to_thread(self._daemon.snapshot)
            names = [one.name for one in seen.instances]
            draw = self._chance.random()
            if draw < 0.03:
                await self._ask(drain_instance, self._chance.choice(names))
                await asyncio.sleep(PAUSE_S)
            if draw < 0.06:
                for name in names:
                    await self._ask(resume_instance, name)
            elif draw < 0.1:
                role = self._chance.choice(["prefill", "decode", "mixed"])
                await self._ask(partial(flip, wait_s=0.0), self._chance.choice(names), role)
            else:
                await self._move(seen)
            await asyncio.sleep(PAUSE_S * self._chance.random())
        for name in names:
            await self._ask(resume_instance, name)

    async def _move(self, seen: Snapshot) -> None:
        """Move one, those in host memory first; maybe back at once."""
        in_host = [one for one in seen.sequences if one.residency == "host"]
        among = in_host if in_host and self._chance.random() < 0.5 else seen.sequences
        if not among:
            return
        one = self._chance.choice(among)
        names = [place.name for place in seen.instances if place.name != one.instance]
        await self._ask(migrate, one.sequence, names[0])
        if self._chance.random() < 0.5 and one.instance:
            await asyncio.sleep(self._chance.choice([0.0, 0.005]))
            await self._ask(migrate, one.sequence, one.instance)

    async def _ask(self, order: Callable[..., object], *words: object) -> None:
        """Order something, whether or not it can be."""
        with contextlib.suppress(ControlError):
            await asyncio.to_thread(order, self._daemon.socket, *words, timeout_s=CALL_S)


async def strike_many(daemon: LiveDaemon, strikes: Strikes, orders: list[Order]) -> None:
    """Have each order carried out, one after the other, each with both workers ready."""
    for order in orders:
        if order.moment == "meet":  # that of the worker that follows this one
            await _strike(strikes, Order("step", peer=False))
        else:
            await ready(daemon)
        await _strike(strikes, order)
        await died(daemon, len(strikes.done))
    await ready(daemon)


async def _strike(strikes: Strikes, order: Order) -> None:
    done, deadline_s = len(strikes.done), time.monotonic() + ORDER_S
    strikes.place(order)
    while len(strikes.done) == done and time.monotonic() < deadline_s:
        await asyncio.sleep(0.005)
    strikes.withdraw()


async def ready(daemon: LiveDaemon) -> Snapshot:
    """The daemon once all its workers are ready."""
    while True:
        seen = await asyncio.to_thread(daemon.snapshot)
        if all(one.state == "ready" for one in seen.instances):
            return seen
        await asyncio.sleep(0.01)


async def died(daemon: LiveDaemon, count: int) -> None:
    """Wait until the daemon has noticed this many deaths."""
    while (await asyncio.to_thread(daemon.snapshot)).counters.worker_deaths < count:
        await asyncio.sleep(0.01)
