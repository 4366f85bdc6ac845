"""Follows the daemon over its control socket: its snapshots, and its loss."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from daemon.control.client import ControlError, Message, MessageReader, no_daemon, question
from daemon.protocol.control import Closer, Watch
from tui.source import Disconnected

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 1.0
CONNECT_TIMEOUT_S = 2.0
WATCH_INTERVAL_S = 0.5

_READ_BYTES = 64 * 1024


class DaemonSource:
    """The daemon that answers at `path`, now or later."""

    def __init__(self, path: Path, interval_s: float = WATCH_INTERVAL_S) -> None:
        self.path = path
        self._interval_s = interval_s
        self._writer: asyncio.StreamWriter | None = None

    def ask(self, closer: Closer) -> None:
        """Ask, if there is a connection; the answer comes among the news."""
        if self._writer is not None:
            self._writer.write(question(closer))

    async def news(self) -> AsyncGenerator[Message | Disconnected, None]:
        """Each message of the daemon; after a loss, one `Disconnected` per try."""
        backoff_s = FIRST_BACKOFF_S
        since_s: float | None = None
        while True:
            try:
                async with contextlib.aclosing(self._connection()) as messages:
                    async for message in messages:
                        backoff_s, since_s = FIRST_BACKOFF_S, None
                        yield message
            except TimeoutError:
                reason = f"the llmd daemon at {self.path} does not answer"
            except OSError as error:
                reason = no_daemon(self.path, error)
            except ControlError as error:
                reason = str(error)
            since_s = time.monotonic() if since_s is None else since_s
            yield Disconnected(since_s, reason)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _connection(self) -> AsyncGenerator[Message, None]:
        """The messages of one connection. Raises OSError, TimeoutError or ControlError
        at its end.
        """
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(os.fspath(self.path))
        try:
            writer.write(question(Watch(self._interval_s)))
            self._writer = writer
            messages = MessageReader()
            while True:
                async with asyncio.timeout(CONNECT_TIMEOUT_S + 2 * self._interval_s):
                    data = await reader.read(_READ_BYTES)
                if not data:
                    raise ConnectionResetError("it closed the connection")
                for message in messages.feed(data):
                    yield message
        finally:
            self._writer = None
            writer.close()
