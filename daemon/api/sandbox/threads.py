"""Threads for work that would block the event loop for too long: tokenizing, above all."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from daemon.api.sandbox.fair_slots import FairSlots

MOST_WAITING = 8192
"""Waiting calls of one owner: as many as connections."""

Made = TypeVar("Made")


class Threads:
    """A thread pool, shared round-robin by owners: one's long prompts do not hold up another's."""

    def __init__(self, pool: Executor, num_threads: int) -> None:
        self._pool = pool
        self._slots = FairSlots(num_threads, MOST_WAITING)

    async def run(self, owner: str, work: Callable[[], Made]) -> Made:
        """Run `work` in a thread. Raises its exceptions, and ApiError 503 where too many wait."""
        await self._slots.acquire(owner)
        made = asyncio.get_running_loop().run_in_executor(self._pool, work)
        # A thread goes on when its caller leaves, and keeps its slot.
        made.add_done_callback(lambda _made: self._slots.release(owner))
        return await asyncio.shield(made)
