"""The disturber of a daemon: kills, stops, orders and configurations, in an order from a seed."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from daemon.control.client import ControlError, choose_policy, drain, reload, resume
from daemon.scheduler.policies import POLICIES
from tests.chaos.clients import Clients
from tests.chaos.processes import gone, members, words_of
from tests.e2e.live import LiveDaemon

API = "daemon.api"
CALL_S = 60.0
GONE_S = 90.0
"""A process that was killed, or stopped for good, is gone long before."""
FAIR = "sarathi"
PULSE_S = 0.7
"""Within this a process that has loaded has said so."""
PAUSES_S = (0.0, 0.05, 0.3)


class Disturber:
    """Does a list of faults to one daemon, one after the other, and notes what came of it."""

    def __init__(
        self, daemon: LiveDaemon, mark: str, worker: str, config: Path, clients: Clients, seed: int
    ) -> None:
        self.done: Counter[str] = Counter()
        self.noticed_s: dict[str, list[float]] = {}
        self._daemon = daemon
        self._mark = mark
        self._worker = worker
        self._config = config
        self._clients = clients
        self._chance = random.Random(seed)
        self._stopped: set[int] = set()
        self._hanging: asyncio.Task[None] | None = None
        self._acts: dict[str, Callable[[], Awaitable[None]]] = {
            "worker killed": self._kill_worker,
            "worker stopped": self._stop_worker,
            "worker stopped a moment": self._pause_worker,
            "API killed": self._kill_api,
            "API stopped": self._stop_api,
            "API stopped a moment": self._pause_api,
            "configuration": self._reload,
            "broken configuration": self._reload_broken,
            "policy": self._choose_policy,
            "drain and resume": self._drain,
        }

    async def disturb(self, counts: dict[str, int], patient: bool) -> None:
        """Faults by kind and count, shuffled; `patient`: each one once all is well again."""
        faults = [name for name, count in counts.items() for _ in range(count)]
        self._chance.shuffle(faults)
        for name in faults:
            await asyncio.sleep(self._chance.choice(PAUSES_S) * self._chance.random())
            if patient:
                await self._all_is_well()
            await self._acts[name]()
            self.done[name] += 1
        await self._hang_is_over()

    async def _all_is_well(self) -> None:
        """Every worker is ready, and an answer came."""
        await self._all_are_ready()
        answered = self._clients.tally.kinds.total()
        while self._clients.tally.kinds.total() == answered:
            await asyncio.sleep(0.02)

    async def _all_are_ready(self) -> None:
        while any(one.state != "ready" for one in self._daemon.snapshot().instances):
            await asyncio.sleep(0.02)

    # Processes

    async def _victim(self, module: str) -> int:
        """A process of this kind that is not stopped; a worker or a spare, loading or not."""
        while True:
            found = await asyncio.to_thread(members, self._mark)
            pids = [pid for pid, one in found.items() if one == module and pid not in self._stopped]
            if pids:
                return self._chance.choice(sorted(pids))
            await asyncio.sleep(0.02)

    async def _serving(self) -> int:
        """A worker that has loaded: one that serves, and no spare."""
        await self._all_are_ready()
        log = self._daemon.text()
        while True:
            pid = await self._victim(self._worker)
            words = words_of(pid)
            if (
                words and "--spare" not in words
            ) or f"the spare (pid {pid}) takes its place" in log:
                return pid

    async def _kill_worker(self) -> None:
        await self._strike("worker killed", await self._victim(self._worker), signal.SIGKILL)

    async def _kill_api(self) -> None:
        await self._end_api("API killed", signal.SIGKILL)

    async def _stop_api(self) -> None:
        """Stop one that has loaded: one that loads may be silent for a minute."""
        await asyncio.to_thread(self._daemon.wait_ready)
        await asyncio.sleep(PULSE_S)
        await self._end_api("API stopped", signal.SIGSTOP)

    async def _end_api(self, name: str, number: signal.Signals) -> None:
        pid = await self._victim(API)
        self._clients.outages.begin()
        await self._strike(name, pid, number)
        self._clients.outages.end()

    async def _pause_api(self) -> None:
        await self._pause(await self._victim(API))

    async def _strike(self, name: str, pid: int, number: signal.Signals) -> None:
        """Send a signal that ends it, by itself or because the daemon does."""
        began_s = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        while not gone(pid):
            assert time.monotonic() - began_s < GONE_S, f"{name}: process {pid} lives on"
            await asyncio.sleep(0.005)
        self.noticed_s.setdefault(name, []).append(time.monotonic() - began_s)

    async def _stop_worker(self) -> None:
        """Stop one for good, beside what else happens; the last one must be over.

        One who was in a step of which two workers died is guilty by the daemon's own rule: so all
        answers that the one before may have struck must be whole.
        """
        await self._hang_is_over()
        pid = await self._serving()
        self._hanging = asyncio.create_task(self._hang(pid))

    async def _hang_is_over(self) -> None:
        """Wait for the last stop, and for all processes that it struck: the shortest first would
        starve some, as long as others keep coming.
        """
        if self._hanging is not None:
            await self._order(choose_policy, FAIR)
            await self._hanging

    async def _hang(self, pid: int) -> None:
        self._stopped.add(pid)
        await self._strike("worker stopped", pid, signal.SIGSTOP)
        struck = set(self._clients.open)
        while struck & self._clients.open:
            await asyncio.sleep(0.02)

    async def _pause_worker(self) -> None:
        await self._pause(await self._victim(self._worker))

    async def _pause(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self._chance.choice([0.02, 0.2, 1.0]) * self._chance.random())
            os.kill(pid, signal.SIGCONT)

    # Orders

    async def _order(self, order: Callable[..., object], *arguments: object) -> None:
        await asyncio.to_thread(order, self._daemon.socket, *arguments, CALL_S)

    async def _choose_policy(self) -> None:
        await self._order(choose_policy, self._chance.choice(sorted(POLICIES)))

    async def _drain(self) -> None:
        await self._order(drain)
        await asyncio.sleep(self._chance.choice(PAUSES_S))
        await self._order(resume)

    async def _reload(self) -> None:
        """Another configuration, by order or by signal."""
        chance = self._chance
        scheduler = {
            "policy": f"'{chance.choice(sorted(POLICIES))}'",
            "starve_s": chance.choice(["0.05", "0.3", "2.0"]),
            "max_waiting": chance.choice(["200", "1024"]),
        }
        lines = [f"{name} = {value}" for name, value in scheduler.items()]
        self._config.write_text("\n".join(["[scheduler]", *lines]))
        if chance.random() < 0.5:
            await self._order(reload)
        else:
            self._daemon.process.send_signal(signal.SIGHUP)

    async def _reload_broken(self) -> None:
        """One that cannot be read, or that says what it may not: nothing changes."""
        self._config.write_text(
            self._chance.choice(["[scheduler", "[scheduler]\npolicy = 'lifo'\n", "colour = 1\n"])
        )
        if self._chance.random() < 0.5:
            self._daemon.process.send_signal(signal.SIGHUP)
            return
        with pytest.raises(ControlError, match="the configuration stays as it was"):
            await self._order(reload)
