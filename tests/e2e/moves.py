"""Ordering sequences of a running daemon from one instance to another, at random."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable

from daemon.control.client import ControlError, fetch_snapshot, migrate
from daemon.protocol.control import SequenceStatus
from tests.e2e.live import LiveDaemon

RUNNING, WAITING, SWAPPED = "running", "waiting", "swapped out"
KINDS = RUNNING, WAITING, SWAPPED
_STATES = {"prefill": RUNNING, "decode": RUNNING, "waiting": WAITING}


def kind_of(one: SequenceStatus) -> str:
    """The state of a sequence at the moment; "" for none of KINDS."""
    if one.state == "preempted":
        return SWAPPED if one.num_host_blocks else ""
    return _STATES.get(one.state, "")


class Mover:
    """Moves sequences of a daemon of several instances, and counts those moved by kind."""

    def __init__(self, daemon: LiveDaemon, seed: int, pause_s: float = 0.02) -> None:
        self._socket = daemon.socket
        self._names = [one.name for one in daemon.snapshot().instances]
        self._chance = random.Random(seed)
        self._pause_s = pause_s
        self.moved: Counter[str] = Counter()

    async def move(self, count: int, kinds: Iterable[str] = ()) -> None:
        """Move so many, and as many more as it takes until each of these kinds was among them."""
        while self.moved.total() < count or not all(self.moved[kind] for kind in kinds):
            await asyncio.sleep(self._chance.uniform(0.0, self._pause_s))
            await asyncio.to_thread(self.move_one)

    def move_one(self) -> None:
        """Move one if any lives, of the rarest kind that there is as a rule."""
        found: dict[str, list[SequenceStatus]] = {}
        for one in fetch_snapshot(self._socket, 10.0).sequences:
            if one.instance in self._names and kind_of(one):
                found.setdefault(kind_of(one), []).append(one)
        if not found:
            return
        rarest = min(found, key=lambda kind: self.moved[kind])
        kind = rarest if self._chance.random() < 0.7 else self._chance.choice(sorted(found))
        chosen = self._chance.choice(found[kind])
        there = self._chance.choice([name for name in self._names if name != chosen.instance])
        try:
            migrate(self._socket, chosen.sequence, there, 10.0)
        except ControlError as error:  # it ended, or was moved by the daemon itself
            if "the daemon refused" not in str(error):
                raise
        else:
            self.moved[kind] += 1
