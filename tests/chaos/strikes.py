"""Orders to kill a worker at a certain moment, carried out by the first worker that reaches it.

The test writes an order into a folder. The workers look there at each such moment; one of them
takes the order, notes the time, and sends SIGKILL to itself or to its peer.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = "LLMD_TOY_STRIKES"
"""A variable of the environment: where orders are."""
MOMENTS = {
    "meet": "the ends of a link are about to meet",
    "send": "blocks of the KV pool are ordered to be sent",
    "layers": "blocks are ordered to be sent with the step that computes them",
    "host": "blocks of the host pool are ordered to be sent",
    "source answers": "the target has answered, the source is about to",
    "target answers": "the source has answered, the target is about to",
    "landed": "the target has just answered",
    "step": "a step is ordered",
}
HOLD_S = 0.03
"""Time that a worker waits before its answer where a peer is to die first."""


class Order(NamedTuple):
    """The worker that is to die, and how long after the moment."""

    moment: str
    peer: bool  # the other worker than the one that comes there
    delay_s: float = 0.0


class Strike(NamedTuple):
    """An order that was carried out."""

    time_s: float  # time.monotonic()
    moment: str
    peer: bool


class Strikes:
    """The orders in a folder."""

    def __init__(self, folder: Path) -> None:
        self._order, self._done = folder / "order", folder / "done"
        self._pids = folder / "pids"
        self._pids.mkdir(exist_ok=True)

    def place(self, order: Order) -> None:
        """Have it carried out once; there is one order at a time."""
        fresh = self._order.with_suffix(".new")
        fresh.write_text(json.dumps(order))
        fresh.rename(self._order)

    def withdraw(self) -> None:
        """Forget an order that no worker carried out."""
        self._order.unlink(missing_ok=True)

    @property
    def done(self) -> list[Strike]:
        """Those that were carried out, in order."""
        if not self._done.exists():
            return []
        return [Strike(*json.loads(line)) for line in self._done.read_text().splitlines()]

    def enlist(self) -> None:
        """This process may be a victim from now on."""
        (self._pids / str(os.getpid())).touch()

    def take(self, moment: str) -> Order | None:
        """The order for this moment, if there is one; it is this process's from now on."""
        with contextlib.suppress(FileNotFoundError):
            order = Order(*json.loads(self._order.read_text()))
            if order.moment == moment:
                self._order.rename(self._order.with_suffix(f".{os.getpid()}"))
                return order
        return None

    def strike(self, order: Order) -> None:
        """Carry it out; where there is no peer, on this process."""
        pid = self._peer() if order.peer else os.getpid()
        strike = Strike(time.monotonic(), order.moment, order.peer)
        with self._done.open("a") as file:
            file.write(json.dumps(strike) + "\n")
        (self._pids / str(pid)).unlink(missing_ok=True)
        os.kill(pid, signal.SIGKILL)

    def _peer(self) -> int:
        """Another process that enlisted and lives."""
        for one in self._pids.iterdir():
            pid = int(one.name)
            if pid != os.getpid() and Path(f"/proc/{pid}").exists():
                return pid
        return os.getpid()
