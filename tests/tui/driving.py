"""The dashboard under a test's hand: news as the test tells them, pictures when it asks."""

import asyncio
import math
from collections.abc import AsyncIterator, Sized
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from daemon.protocol.control import Closer
from tests.tui import scenario
from tui.dashboard import LlmdTop
from tui.source import News

SOON_S = 0.02
"""Textual gathers resizes and what to repaint for a sixtieth of a second."""


async def settle(_min_s: float = 0.0, _max_s: float = 0.0) -> None:
    """Return when all tasks of this loop wait: for a socket, a thread, or a time that is not soon.

    A process that gets no core is not done, though it uses little time.
    """
    loop = asyncio.get_running_loop()
    ready: Sized = loop._ready  # type: ignore[attr-defined]
    timers: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]
    while True:
        await asyncio.sleep(0)
        if not ready:
            due_s = [timer.when() for timer in timers if not timer.cancelled()]
            wait_s = min(due_s, default=math.inf) - loop.time()
            if wait_s > SOON_S:
                return
            await asyncio.sleep(max(0.0, wait_s))


class Scripted:
    """A source with scripted answers that records the orders."""

    def __init__(self, *news: News) -> None:
        self.asked: list[Closer] = []
        self.said: asyncio.Queue[News] = asyncio.Queue()
        for one in news:
            self.said.put_nowait(one)

    def ask(self, question: Closer) -> None:
        self.asked.append(question)

    async def news(self) -> AsyncIterator[News]:
        while True:
            yield await self.said.get()
            self.said.task_done()


class Top:
    """A running dashboard."""

    def __init__(self, app: LlmdTop, pilot: Pilot[None], source: Scripted) -> None:
        self.app = app
        self.pilot = pilot
        self.source = source

    async def tell(self, *news: News) -> str:
        """Let it hear these; the picture after that."""
        for one in news:
            self.source.said.put_nowait(one)
        await self.source.said.join()
        return await self.picture()

    async def press(self, *keys: str) -> str:
        """Press keys; the picture after that."""
        await self.pilot.press(*keys)
        return await self.picture()

    async def picture(self) -> str:
        """All characters on the screen, line by line, after everything was shown."""
        await self.pilot.pause()
        self.app.show()
        await self.pilot.pause()
        return screen_text(self.app)

    @property
    def ids(self) -> list[int]:
        """The sequences in the order of the overview's table."""
        return [int(key) for key, _ in self.app.overview.sequences.rows]


def screen_text(app: LlmdTop) -> str:
    """All characters on the screen, line by line."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in lines)


@asynccontextmanager
async def watching(
    *news: News,
    size: tuple[int, int] = (120, 40),
    settings: Path | None = None,
) -> AsyncIterator[Top]:
    """A dashboard that has shown these news, by default one busy snapshot."""
    source = Scripted(*(news or (scenario.snapshot(10),)))
    app = LlmdTop(source, settings=settings)
    async with app.run_test(size=size) as pilot:
        top = Top(app, pilot, source)
        await source.said.join()
        await top.picture()
        yield top
