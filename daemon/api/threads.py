"""Threads for what takes longer than the event loop may wait: tokenizing, above all."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from daemon.api.turns import Turns

MOST_WAITING = 8192
"""Of one owner: as many as connections."""

Made = TypeVar("Made")


class Threads:
    """Owners of work take turns at a pool, so that nobody's long prompts hold others' up."""

    def __init__(self, pool: Executor, num_threads: int) -> None:
        self._pool = pool
        self._turns = Turns(num_threads, MOST_WAITING)

    async def run(self, owner: str, work: Callable[[], Made]) -> Made:
        """What `work` gives in a thread. Raises as it, and ApiError 503 where too much waits."""
        await self._turns.take(owner)
        made = asyncio.get_running_loop().run_in_executor(self._pool, work)
        # A thread goes on when whoever waits for it leaves, and keeps its turn.
        made.add_done_callback(lambda _made: self._turns.give_back(owner))
        return await asyncio.shield(made)
