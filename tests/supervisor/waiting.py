"""Waiting for processes, with a bound."""

import asyncio
import os
from collections.abc import Callable

from tests.hangs import HANG_S


async def until(condition: Callable[[], bool], timeout_s: float = HANG_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def exists(pid: int) -> bool:
    """Whether a process of this id is there, be it only to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
