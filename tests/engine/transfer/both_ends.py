"""Both ends of a handoff in one process, and streams whose work happens in any order allowed."""

import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.gpu.handoff_peer import PoolSizes
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.host_pool import HostPool
from daemon.engine.transfer.connect import EndPools, connect_receiver, connect_sender
from daemon.engine.transfer.messages import Broken, News
from daemon.engine.transfer.receiver import Receiver
from daemon.engine.transfer.sender import Sender
from daemon.wire.columns import Int32, int32

SOURCE, TARGET = PoolSizes(seed=1), PoolSizes(seed=2, num_blocks=30)


Connect = Callable[[PagedKV, PagedKV], tuple[Sender, Receiver]]


def over_host(
    source: PagedKV, target: PagedKV, host: HostPool | None = None
) -> tuple[Sender, Receiver]:
    """Ends with a ring of two slots, each for two blocks of `SOURCE`; `host`: a pool beside it."""
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as other:
        receiver = other.submit(connect_receiver, there, EndPools(target))
        ours = EndPools(source, host)
        return connect_sender(here, ours, num_slots=2, slot_bytes=4096), receiver.result()


class Pair:
    """A sender and a receiver, their pools, and their messages; a context of their life."""

    def __init__(self, connect: "Connect | None" = None) -> None:
        """`connect` joins other ends than those of `over_host`."""
        self.source, self.target = SOURCE.make(), TARGET.make()
        self.expected = TARGET.contents()
        self.sender, self.receiver = (connect or over_host)(self.source, self.target)
        self.sent: SimpleQueue[News] = SimpleQueue()
        self.received: SimpleQueue[News] = SimpleQueue()

    def __enter__(self) -> Self:
        self.sender.start(self.sent.put)
        self.receiver.start(self.received.put)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sender.close()
        self.receiver.close()

    def send(self, transfer: int, blocks: Int32, targets: Int32, computed: bool = False) -> None:
        """Whole blocks, all of them full; notes what the receiver's pool must then hold."""
        self.sender.send(transfer, blocks, targets, full(self.source, blocks), computed)
        self.expected[targets.tolist()] = self.source.raw[blocks.tolist()]


def broken(told: Any) -> tuple[int, str]:
    """Which transfer was broken off, and why."""
    assert isinstance(told, Broken), told
    return told.transfer, told.reason


def full(cache: PagedKV, blocks: Int32) -> Int32:
    """Fills of blocks that are full."""
    return np.full(len(blocks), cache.block_size, np.int32)


def columns(*values: list[int]) -> list[Int32]:
    """Lists as columns."""
    return [int32(one) for one in values]


class Timeline:
    """Streams of one device: each in its own order, and otherwise any, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._queues: list[list[Any]] = []

    def stream(self) -> "AnyTime":
        """One more stream."""
        self._queues.append([])
        return AnyTime(self._queues[-1])

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Do all that can be done, or until something is so."""
        while not until() and (ready := [queue for queue in self._queues if _can_go(queue)]):
            self._chance.choice(ready).pop(0)[1]()


class Mark:
    """An event of `AnyTime`."""

    reached = False

    def reach(self) -> None:
        self.reached = True

    def synchronize(self) -> None:
        assert self.reached, "nobody waits in these tests"

    def seconds_since(self, earlier: "Mark") -> float:
        return 0.0


class AnyTime:
    """A stream of a `Timeline`."""

    def __init__(self, queue: list[Any]) -> None:
        self._queue = queue

    def run(self, work: Callable[[], None]) -> None:
        self._queue.append((None, work))

    def wait(self, event: Mark) -> None:
        self._queue.append((event, lambda: None))

    def record(self) -> Mark:
        event = Mark()
        self._queue.append((None, event.reach))
        return event


def _can_go(queue: list[Any]) -> bool:
    return bool(queue) and (queue[0][0] is None or queue[0][0].reached)
