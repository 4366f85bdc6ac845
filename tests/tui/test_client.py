"""Following a daemon that is absent, mute, mad or slow to come back."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from daemon.control.protocol import Snapshot
from daemon.control.server import ControlServer
from daemon.wire.frames import inline_frame
from tests.tui import scenario
from tui import client
from tui.client import Disconnected, follow

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(path: Path, talk: Talk) -> AsyncIterator[None]:
    """Something that listens at `path` and does `talk` with who connects."""
    server = await asyncio.start_unix_server(talk, path)
    yield
    server.close()


async def first_news(path: Path) -> Snapshot | Disconnected:
    async with asyncio.timeout(5):
        return await anext(follow(path))


async def test_a_mute_daemon_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT_S", 0.1)

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with peer(path, mute):
        news = await first_news(path)
    assert isinstance(news, Disconnected)
    assert "does not answer" in news.reason


async def test_a_mad_daemon_is_said_to_be_not_understood(path: Path) -> None:
    async def mad(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(inline_frame(b"\x81\xa4type\xa8Snapshot"))
        await writer.drain()
        writer.close()

    async with peer(path, mad):
        news = await first_news(path)
    assert isinstance(news, Disconnected)
    assert "not understood" in news.reason


async def test_the_time_of_the_loss_stays_and_tries_come_at_least_each_second(path: Path) -> None:
    lost: list[Disconnected] = []
    times: list[float] = []
    async for news in follow(path):
        assert isinstance(news, Disconnected)
        lost.append(news)
        times.append(time.monotonic())
        if len(lost) == 6:
            break
    assert {loss.since_s for loss in lost} == {lost[0].since_s}
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[0] < 0.5
    assert max(gaps) < 1.3


async def test_each_snapshot_comes_once_and_in_order(path: Path) -> None:
    steps = iter(range(100))
    server = ControlServer(path, lambda: scenario.snapshot(next(steps)))
    await server.start()
    seen: list[float] = []
    async for news in follow(path, 0.2):
        assert isinstance(news, Snapshot)
        seen.append(news.time_s)
        if len(seen) == 4:
            break
    await server.close()
    assert seen == [100.0, 100.5, 101.0, 101.5]
