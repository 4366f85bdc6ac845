"""Ranks as real worker processes: one instance, driven as the daemon drives it."""

import os
import socket
from contextlib import ExitStack
from typing import Self

import msgspec

from daemon.protocol.worker import Copied, Failed, Load, Plan, RankMemory, Ready, Reply, Shutdown
from daemon.wire.columns import encoder
from tests.engine.process import WorkerProcess


class RankGroup:
    """The worker processes of an instance of several ranks."""

    def __init__(self, load: Load, world_size: int, **environment: str) -> None:
        self._stack = ExitStack()
        self.ranks = [
            self._stack.enter_context(WorkerProcess(**environment)) for _ in range(world_size)
        ]
        self._loads = [
            msgspec.structs.replace(load, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]

    def __enter__(self) -> Self:
        memory = os.memfd_create("ranks")
        for worker, load in zip(self.ranks, self._loads, strict=True):
            payload = encoder().encode(RankMemory())
            socket.send_fds(worker.links, [payload], [memory])
            worker.send(load)
        os.close(memory)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ready(self) -> list[Ready | Failed]:
        """The end of each rank's loading."""
        return [worker.end_of_loading() for worker in self.ranks]

    def run(self, plan: Plan) -> Reply:
        """The first rank's reply to a plan; copies are not told."""
        for worker in self.ranks:
            worker.send(plan)
        while isinstance(answer := self.ranks[0].receive(), Copied):
            pass
        assert isinstance(answer, Reply), answer
        return answer

    def shut_down(self) -> list[int]:
        """Their exit statuses."""
        for worker in self.ranks:
            worker.send(Shutdown())
        return [worker.exit_status() for worker in self.ranks]
