"""Ranks as threads of one process: their operations release Python's lock."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from daemon.engine.ranks.shared_memory import SharedMemoryRanks
from tests.hangs import HANG_S

Result = TypeVar("Result")


def on_ranks(
    world_size: int, work: Callable[[SharedMemoryRanks], Result], deadline_s: float = HANG_S
) -> list[Result | BaseException]:
    """The results of `work` on each rank, or what it raised."""
    memory = os.memfd_create("ranks")
    ends = [SharedMemoryRanks(memory, rank, world_size, deadline_s) for rank in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(work, end) for end in ends]
        return [future.exception() or future.result() for future in futures]
