"""The dashboard against a real control server on a Unix socket: lost, found again, asked closer."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from daemon.control.server import ControlServer
from daemon.protocol.control import AskOwners, AskStory, BlockOwners, Closer, Story
from tests.hangs import HANG_S
from tests.tui import scenario
from tests.tui.driving import screen_text
from tui.client import DaemonSource
from tui.dashboard import LlmdTop
from tui.screens.sequence import SequenceScreen


class Busy:
    """A control server whose snapshots move by half a second each."""

    def __init__(self, path: Path) -> None:
        self.step = 10
        self.asked: list[Closer] = []
        self._path = path
        self._server: ControlServer | None = None

    async def start(self) -> None:
        self._server = ControlServer(self._path, self._snapshot, look_closer=self._closer)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()

    def _snapshot(self) -> scenario.Snapshot:
        self.step += 1
        return scenario.swapping(self.step)

    def _closer(self, question: Closer) -> Story | BlockOwners:
        self.asked.append(question)
        if isinstance(question, AskStory):
            return scenario.story(question.sequence, 119.0)
        assert isinstance(question, AskOwners)
        return scenario.owners(scenario.swapping(self.step), question.instance)


async def until(pilot: Pilot[None], happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not happened():
            await pilot.pause(0.02)


async def test_lost_found_again_and_asked_closer(path: Path) -> None:
    daemon = Busy(path)
    app = LlmdTop(DaemonSource(path, interval_s=0.2))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "no such socket" in app.overview.banner.text)
        await daemon.start()
        await until(pilot, lambda: len(app.overview.sequences.rows) > 0)
        assert not app.overview.banner.display
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: "gave way to 1010" in screen_text(app))
        await pilot.press("k")
        await until(pilot, lambda: 0 in app.watched.owners)
        assert set(daemon.asked) == {AskStory(1002), AskOwners(0)}
        await daemon.stop()
        await until(pilot, lambda: "disconnected for" in screen_text(app))
        await pilot.press("t", "down", "enter")
        assert isinstance(app.screen, SequenceScreen)
        heard = app.watched.version
        await daemon.start()
        await until(pilot, lambda: app.watched.version > heard and app.watched.lost is None)
        await until(pilot, lambda: "disconnected" not in screen_text(app))
    await daemon.stop()
