"""Ranks as real worker processes: one instance, driven as the daemon drives it."""

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

import msgspec

from daemon.memory.layout import row_blocks
from daemon.protocol.worker import (
    Copied,
    Failed,
    Load,
    Plan,
    RankMemory,
    Ready,
    Reply,
    Shutdown,
    StagesWorked,
)
from daemon.wire.columns import encoder
from tests.engine.driver import Driver
from tests.engine.process import WorkerProcess
from tests.engine.tiny import CONTEXT_LEN


class RankGroup:
    """The worker processes of an instance of several ranks."""

    def __init__(self, load: Load, world_size: int, **environment: str) -> None:
        self._stack = ExitStack()
        self.ranks = [
            self._stack.enter_context(WorkerProcess(**environment)) for _ in range(world_size)
        ]
        self.loads = [
            msgspec.structs.replace(load, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]

    def __enter__(self) -> Self:
        memory = os.memfd_create("ranks")
        for worker, load in zip(self.ranks, self.loads, strict=True):
            if len(self.ranks) > 1:
                payload = encoder().encode(RankMemory())
                socket.send_fds(worker.links, [payload], [memory])
            worker.send(load)
        os.close(memory)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ready(self) -> list[Ready | Failed]:
        """The end of each rank's loading."""
        self.readies = [worker.end_of_loading() for worker in self.ranks]
        return self.readies

    def run(self, plan: Plan) -> Reply:
        """The first rank's reply to a plan; copies are not told."""
        self.send(plan)
        return self.reply()

    def send(self, plan: Plan) -> None:
        """Give all ranks a plan."""
        for worker in self.ranks:
            worker.send(plan)

    def reply(self) -> Reply:
        """The first rank's next reply."""
        while isinstance(answer := self.ranks[0].receive(), Copied | StagesWorked):
            pass
        assert isinstance(answer, Reply), answer
        return answer

    def shut_down(self) -> list[int]:
        """Their exit statuses."""
        for worker in self.ranks:
            worker.send(Shutdown())
        return [worker.exit_status() for worker in self.ranks]


def texts_of(
    group: RankGroup, texts: Sequence[list[int]], block_size: int, num_blocks: int, num_outputs: int
) -> list[list[int]]:
    """The answers to all texts at once; in the middle the last one's blocks and states go to the
    host pool, and come back elsewhere.
    """
    plans, spare_slot = Driver(block_size, list(range(num_blocks))), len(texts)
    ready = next(ready for ready in group.readies if isinstance(ready, Ready))
    plans.fit_ready(ready, spare_slot + 1, row_blocks(CONTEXT_LEN, block_size))
    sequences = [plans.add(slot, tokens) for slot, tokens in enumerate(texts)]
    moved = sequences[-1]
    while going := [s for s in sequences if len(s.outputs) < num_outputs]:
        work = [(s, len(s.tokens) - s.num_computed) for s in going]
        if len(moved.outputs) == 3:
            plans.take_out(moved)
            plans.take([], group.run(plans.plan([])))
            plans.bring_back(moved, spare_slot)
        plans.take(work, group.run(plans.plan(work)))
    return [sequence.outputs for sequence in sequences]
