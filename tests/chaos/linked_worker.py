"""A toy worker with real links: its blocks lie in a real KV pool, and the real ends copy them.

`python -m tests.chaos.linked_worker --fd N --links-fd N --device KIND [--spare]`. A sequence that
goes on elsewhere with wrong blocks is found by the toy's own checks, or draws other tokens.
"""

import contextlib
import os
import socket
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from daemon.engine.batch.streams import ThreadEvent, compute_stream
from daemon.engine.families import ALL
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.host_pool import HostPool
from daemon.engine.transfer.links import WorkerLinks
from daemon.protocol.worker import CancelTransfer, FromWorker, Load, Plan, StartTransfer, ToWorker
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import Column
from daemon.wire.faults import Faults, faults
from tests.chaos.engine import Pools, ToyEngine
from tests.chaos.toy import Numbers
from tests.chaos.worker import ToyWorker, main

CPU = torch.device("cpu")
NUM_LAYERS = 2
"""An entry's two numbers are 16 bytes: a key and a value of 4 bytes in each layer."""


class ToySwap:
    """The toy's host pool, as links ask for it."""

    def __init__(self, engine: ToyEngine, pool: HostPool) -> None:
        self.pool = pool
        self._engine = engine

    def written(self, _places: Column) -> ThreadEvent:
        """When all swap copies so far have ended."""
        event = ThreadEvent()
        self._engine.when_copied(event.reach)
        return event


class LinkedToyWorker(ToyWorker):
    """A toy that takes orders to send blocks."""

    def __init__(self, channel: BlockingChannel, links_fd: int) -> None:
        super().__init__(channel)
        torch.set_num_threads(1)
        self._links_sock = socket.socket(fileno=links_fd)
        self._links: WorkerLinks | None = None
        self._linked: Any = None  # what links want of an engine

    def _engine(self, load: Load) -> ToyEngine:
        cache = PagedKV(load.num_blocks, NUM_LAYERS, load.block_size, 1, 1, torch.float32, CPU)
        pool = HostPool(load.num_host_blocks, cache, compress=False)
        pools = Pools(*(numbers_of(one, load.block_size) for one in (cache.raw, pool.rows)))
        engine = ToyEngine(load, self._send, pools)
        self._linked = SimpleNamespace(
            cache=cache,
            swap=ToySwap(engine, pool),
            stream=compute_stream(CPU),
            backend=SimpleNamespace(by_torch=ALL),
        )
        self._links = self._new_links(faults("worker.link", load.life))
        return engine

    def _new_links(self, found: Faults) -> WorkerLinks:
        return WorkerLinks(self._links_sock, self._tell, found)

    def _answer_plans(self, engine: ToyEngine) -> None:
        assert self._links is not None, "it has loaded"
        self._links.begin(self._linked)
        super()._answer_plans(engine)

    def _compute(self, engine: ToyEngine, plan: Plan) -> None:
        assert self._links is not None, "it has loaded"
        reply = engine.run(plan)
        self._links.after_step()
        self._answer(reply)

    def _take(self, message: ToWorker | None) -> bool:
        assert self._links is not None, "it has loaded"
        if not isinstance(message, StartTransfer | CancelTransfer):
            return False
        self._links.take(message)
        return True

    def _tell(self, message: FromWorker) -> None:
        """On any thread."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `serve` will see it
            self._send(message)


def numbers_of(rows: torch.Tensor, block_size: int) -> Numbers:
    """Rows of bytes as the toy's entries [num, block_size, 2], in the same memory."""
    numbers: Numbers = rows.numpy().view(np.uint64).reshape(len(rows), block_size, 2)
    return numbers


if __name__ == "__main__":
    os._exit(main(LinkedToyWorker))
