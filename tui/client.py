"""Follows the daemon over its control socket: snapshots while it lives, news of its loss."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from daemon.control.client import ControlError, SnapshotReader, no_daemon, question
from daemon.control.protocol import Snapshot, Watch

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 1.0
CONNECT_TIMEOUT_S = 2.0

_READ_BYTES = 64 * 1024


@dataclass(frozen=True)
class Disconnected:
    """No daemon answers since `since_s` (time.monotonic()), for this reason; it is tried again."""

    since_s: float
    reason: str


async def follow(
    path: Path, interval_s: float = 0.5
) -> AsyncGenerator[Snapshot | Disconnected, None]:
    """Yield each snapshot of the daemon at `path`; after a loss, one `Disconnected` a try."""
    backoff_s = FIRST_BACKOFF_S
    since_s: float | None = None
    while True:
        try:
            async with contextlib.aclosing(_watch(path, interval_s)) as snapshots:
                async for snapshot in snapshots:
                    backoff_s, since_s = FIRST_BACKOFF_S, None
                    yield snapshot
        except TimeoutError:
            reason = f"the llmd daemon at {path} does not answer"
        except OSError as error:
            reason = no_daemon(path, error)
        except ControlError as error:
            reason = str(error)
        since_s = time.monotonic() if since_s is None else since_s
        yield Disconnected(since_s, reason)
        await asyncio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)


async def _watch(path: Path, interval_s: float) -> AsyncGenerator[Snapshot, None]:
    """The snapshots of one connection. Raises OSError, TimeoutError or ControlError at its end."""
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(os.fspath(path))
    try:
        writer.write(question(Watch(interval_s)))
        frames = SnapshotReader()
        while True:
            async with asyncio.timeout(CONNECT_TIMEOUT_S + 2 * interval_s):
                data = await reader.read(_READ_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection")
            for snapshot in frames.feed(data):
                yield snapshot
    finally:
        writer.close()
