"""Screenshots of the dashboard fed by the invented daemon: `python -m tests.tui.shots FOLDER`."""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from daemon.control.protocol import Snapshot
from daemon.control.server import ControlServer
from tests.tui import scenario
from tui.app import LlmdTop

LEVELLED = ((80, 24), (140, 42))
SIZES = ((80, 24), (80, 50), (120, 30), (120, 40), (200, 60))
EIGHT = tuple(f"gpu{index}" for index in range(8))


class Moving:
    """A source whose snapshots move on by half a second a call."""

    def __init__(
        self,
        start: int = 0,
        names: tuple[str, ...] = ("gpu0", "gpu1"),
        made: Callable[..., Snapshot] = scenario.snapshot,
    ) -> None:
        self.step = start
        self.names = names
        self._made = made

    def __call__(self) -> Snapshot:
        self.step += 1
        return self._made(self.step, names=self.names, num_running=12 * len(self.names))


async def shoot(
    picture: Path,
    size: tuple[int, int],
    source: Callable[[], Snapshot],
    keys: tuple[str, ...] = (),
    *,
    lose: bool = False,
) -> None:
    """Save one SVG after two minutes of invented history and two live seconds."""
    with tempfile.TemporaryDirectory() as place:
        server = ControlServer(Path(place) / "llmd.sock", source)
        await server.start()
        app = LlmdTop(Path(place) / "llmd.sock")
        if isinstance(source, Moving):
            for step in range(240):
                app.history.add(scenario.snapshot(step))
        async with app.run_test(size=size) as pilot:
            await pilot.pause(1.5)
            await pilot.press(*keys)
            if lose:
                await server.close()
            await pilot.pause(1.5)
            app.save_screenshot(str(picture))
        await server.close()


async def main(folder: Path) -> None:
    """One picture a size, and one of each special state."""
    for width, height in SIZES:
        await shoot(folder / f"top-{width}x{height}.svg", (width, height), Moving(240))
    for width, height in LEVELLED:
        picture = folder / f"swapping-{width}x{height}.svg"
        await shoot(picture, (width, height), Moving(240, made=scenario.swapping))
    wide = (120, 40)
    await shoot(folder / "lost.svg", wide, Moving(240), lose=True)
    await shoot(folder / "loading.svg", wide, lambda: scenario.starting(0.43))
    await shoot(folder / "loading-80.svg", (80, 24), lambda: scenario.starting(0.43))
    await shoot(folder / "help.svg", (80, 24), Moving(240), ("question_mark",))
    await shoot(folder / "filter.svg", wide, Moving(240), ("slash", *"decode", "p"))
    await shoot(folder / "eight.svg", (160, 50), Moving(240, EIGHT))
    await shoot(folder / "eight-80.svg", (80, 24), Moving(240, EIGHT))
    idle = scenario.snapshot(0, num_running=0, num_waiting=0)
    await shoot(folder / "idle.svg", wide, lambda: idle)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
