"""Two real workers with links between them, and what each says, sorted."""

import socket
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import count
from types import TracebackType
from typing import Any, Self

from daemon.protocol.worker import (
    FromWorker,
    LinkState,
    Load,
    NewLink,
    Ready,
    Reply,
    StartTransfer,
    TransferOver,
)
from daemon.wire.columns import int32
from daemon.wire.faults import TEST_MODE, VARIABLE
from tests.engine.driver import Driver, Running
from tests.engine.process import WorkerProcess, cpu_load
from tests.hangs import HANG_S

NUM_BLOCKS = 64

links = count(1)
transfers = count(1)


class Linked:
    """A worker: its plans, and what it said, by kind."""

    def __init__(self, worker: WorkerProcess, load: Load) -> None:
        self.worker = worker
        ready = worker.load(load)
        assert isinstance(ready, Ready), ready
        self.ready = ready
        self.plans = Driver(load.block_size, list(range(load.num_blocks)))
        self._said: dict[type, list[Any]] = defaultdict(list)

    def next(self, kind: type, timeout_s: float = HANG_S) -> Any:
        """Its next message of a kind."""
        until_s = time.monotonic() + timeout_s
        while not self._said[kind]:
            assert self.worker.says(until_s - time.monotonic()), f"it says no {kind.__name__}"
            message: FromWorker = self.worker.receive()
            self._said[type(message)].append(message)
        return self._said[kind].pop(0)

    def says_no(self, kind: type, timeout_s: float = 0.3) -> bool:
        """Whether it sends no message of a kind for a time."""
        until_s = time.monotonic() + timeout_s
        while not self._said[kind] and self.worker.says(until_s - time.monotonic()):
            message = self.worker.receive()
            self._said[type(message)].append(message)
        return not self._said[kind]

    def step(self, running: Running, count: int) -> None:
        """Compute tokens of a sequence."""
        self.worker.send(self.plans.plan([(running, count)]))
        self.plans.take([(running, count)], self.next(Reply))

    def decode(self, running: Running, count: int) -> list[int]:
        """Decode more tokens."""
        for _ in range(count):
            self.step(running, len(running.tokens) - running.num_computed)
        return running.outputs


class Two:
    """Two workers of a model, started as `quick` says; they may have faults."""

    def __init__(
        self, folder: str, quick: dict[str, str], faults: str = "", **changes: Any
    ) -> None:
        self._ends = ExitStack()
        test = {**quick, **({TEST_MODE: "1", VARIABLE: faults} if faults else {})}
        load = cpu_load(folder, num_threads=1, **changes)
        with ExitStack() as ends:
            workers = [ends.enter_context(WorkerProcess(**test)) for _ in range(2)]
            self.here, self.there = (Linked(worker, load) for worker in workers)
            self._ends = ends.pop_all()
        self.number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    def join(self) -> None:
        """A link from here to there."""
        self.number = next(links)
        one, other = socket.socketpair()
        self.here.worker.link(NewLink(1, True, self.number), one)
        self.there.worker.link(NewLink(0, False, self.number), other)

    def joined(self) -> Self:
        """A link that is up."""
        self.join()
        assert self.here.next(LinkState) == LinkState(1, True, True, self.number)
        assert self.there.next(LinkState) == LinkState(0, False, True, self.number)
        return self

    def send(
        self, blocks: list[int], targets: list[int], num_tokens: int = 0, **changes: Any
    ) -> int:
        """Order a transfer; its number."""
        number = next(transfers)
        tokens = num_tokens or len(blocks) * self.here.plans.block_size
        columns = int32(blocks), int32(targets)
        fields = {"link": self.number, **changes}
        order = StartTransfer(number, 1, *columns, tokens, **fields)
        (self.here.worker.beside if order.at_once else self.here.worker.send)(order)
        return number

    def overs(self, number: int) -> tuple[TransferOver, TransferOver]:
        """The messages of both ends about their next transfer."""
        found = self.here.next(TransferOver), self.there.next(TransferOver)
        assert [one.transfer for one in found] == [number, number]
        return found
