"""Waiting for a server, with a bound."""

import asyncio

import aiohttp

from tests.hangs import HANG_S


async def until_ready(url: str, timeout_s: float = HANG_S) -> None:
    """Wait until `/ready` says 200."""
    async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)
