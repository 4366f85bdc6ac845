"""Following a daemon that is absent, mute, mad or slow to come back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon.control.server import ControlServer
from daemon.protocol.control import Snapshot
from daemon.wire.frames import inline_frame
from tests.hangs import HANG_S
from tests.tui import scenario
from tui import client
from tui.client import DaemonSource
from tui.source import Disconnected

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(path: Path, talk: Talk) -> AsyncIterator[None]:
    """Something that listens at `path` and does `talk` with who connects."""
    server = await asyncio.start_unix_server(talk, path)
    yield
    server.close()


async def first_news(path: Path) -> Snapshot | Disconnected:
    async with asyncio.timeout(HANG_S):
        news = await anext(DaemonSource(path).news())
        assert isinstance(news, Snapshot | Disconnected)
        return news


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


async def test_the_time_of_the_loss_stays_and_tries_come_at_least_each_second(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    async def sleep(seconds: float) -> None:
        waits_s.append(seconds)

    monkeypatch.setattr(client.asyncio, "sleep", sleep)
    lost: list[Disconnected] = []
    async for news in DaemonSource(path).news():
        assert isinstance(news, Disconnected)
        lost.append(news)
        if len(lost) == 7:
            break
    assert {loss.since_s for loss in lost} == {lost[0].since_s}
    assert waits_s == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_each_snapshot_comes_once_and_in_order(path: Path) -> None:
    steps = iter(range(100))
    server = ControlServer(path, lambda: scenario.snapshot(next(steps)))
    await server.start()
    seen: list[float] = []
    async for news in DaemonSource(path, 0.2).news():
        assert isinstance(news, Snapshot)
        seen.append(news.time_s)
        if len(seen) == 4:
            break
    await server.close()
    assert seen == [100.0, 100.5, 101.0, 101.5]
