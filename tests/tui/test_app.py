"""The dashboard itself, driven by keys, against a real control server on a Unix socket."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

from daemon.control.protocol import Snapshot
from daemon.control.server import ControlServer
from tests.tui import scenario
from tui import format as human
from tui.app import LlmdTop
from tui.help import HelpScreen
from tui.ordering import SORTS

SIZES = [(80, 24), (100, 30), (120, 40), (200, 60)]


class Daemon:
    """A control server whose snapshot the test sets."""

    def __init__(self, path: Path) -> None:
        self.snapshot = scenario.snapshot(10)
        self._path = path
        self._server: ControlServer | None = None

    async def start(self) -> None:
        self._server = ControlServer(self._path, lambda: self.snapshot)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()


@asynccontextmanager
async def watching(
    path: Path, size: tuple[int, int] = (120, 40), first: Snapshot | None = None
) -> AsyncIterator[tuple[Daemon, LlmdTop, Pilot[None]]]:
    """A daemon and a dashboard that has shown its first snapshot."""
    daemon = Daemon(path)
    daemon.snapshot = first or daemon.snapshot
    await daemon.start()
    app = LlmdTop(path)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.instances.row_count > 0)
        yield daemon, app, pilot
    await daemon.stop()


async def until(pilot: Pilot[None], happened: Callable[[], bool], limit_s: float = 5.0) -> float:
    """Wait for `happened`; the seconds it took."""
    started_s = time.monotonic()
    while not happened():
        assert time.monotonic() - started_s < limit_s, "it did not happen in time"
        await pilot.pause(0.05)
    return time.monotonic() - started_s


def screen_text(app: LlmdTop) -> str:
    """All characters on the screen, line by line."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in lines)


def ids(app: LlmdTop) -> list[int]:
    """The sequences' ids in the order of the table."""
    return [int(app.sequences.get_row_at(i)[0].plain) for i in range(app.sequences.row_count)]


@pytest.mark.parametrize("size", SIZES)
async def test_the_picture_fits_and_says_it_all(path: Path, size: tuple[int, int]) -> None:
    async with watching(path, size) as (_daemon, app, pilot):
        await pilot.pause(0.3)
        text = screen_text(app)
    for word in ("SmolLM2-135M-Instruct", "● ready", "127.0.0.1:8000", "20 running", "10 waiting"):
        assert word in text
    for word in (
        "gpu0",
        "gpu1",
        "prefill",
        "cuda:0",
        "seq/tok",
        "held",
        "fenced",
        "cached",
        "free",
    ):
        assert word in text
    for word in ("● decode", "output/max", "blocks", "prio", "pre", "TTFT", "output tok/s"):
        assert word in text
    for key in ("q quit", "p pause", "s sort", "/ filter", "? help", "tab focus"):
        assert key in text.splitlines()[-1]
    assert all(len(line) <= size[0] for line in text.splitlines())


@pytest.mark.parametrize("size", [(80, 24), (140, 42)])
async def test_levels_and_swapping_have_their_place(path: Path, size: tuple[int, int]) -> None:
    async with watching(path, size, scenario.swapping(10)) as (daemon, app, pilot):
        daemon.snapshot = scenario.swapping(12)
        await until(pilot, lambda: "34 %" in screen_text(app))
        text = screen_text(app)
        shown = app.sequences.size.height - 1
        exceeded = app.sequences.get_cell("1005", "predicted").plain
        place = app.sequences.get_cell("1005", "blocks").plain
    block_bytes = 2 * scenario.RATE_OUT * scenario.BLOCK_BYTES
    assert f"{human.size(block_bytes)}/s" in text
    for word in ("levels", "█▅·▂··▁ 0:12 1:8 3:3 6:1", "host used", "32 %", "link", "out", "in"):
        assert word in text
    for word in ("policy mlfq · swap proactive", "■ gpu  □ host  ◧ both  ⇄ moving"):
        assert word in text
    for word in ("pred", "lv", "◧ 12/94", "● decode", "output/max", "TTFT", "held", "? help"):
        assert word in text
    assert (exceeded.strip(), place.strip()) == ("60!", "□ 41")
    assert shown >= 3
    assert all(len(line) <= size[0] for line in text.splitlines())


async def test_without_levels_or_a_host_pool_nothing_is_said_of_them(path: Path) -> None:
    async with watching(path) as (daemon, app, pilot):
        await pilot.pause(0.3)
        before = screen_text(app)
        daemon.snapshot = scenario.swapping(12)
        await until(pilot, lambda: app.queues.row_count == 2)
        await until(pilot, lambda: "host used" in screen_text(app) and "lv" in screen_text(app))
        daemon.snapshot = scenario.snapshot(14)
        await until(pilot, lambda: app.queues.row_count == 0)
        await until(pilot, lambda: "host used" not in screen_text(app))
        after = screen_text(app)
    for text in (before, after):
        for word in ("host used", " lv ", " pred ", "□ host"):
            assert word not in text
    assert "policy sarathi · swap recompute" in after


async def test_tab_reaches_the_queues_while_they_are_shown(path: Path) -> None:
    async with watching(path, (80, 24), scenario.swapping(10)) as (_daemon, app, pilot):
        await until(pilot, lambda: app.queues.row_count == 2)
        height = app.queues.size.height
        await pilot.press("tab", "tab")
        assert app.queues.has_focus
        await pilot.pause(0.1)
        assert app.queues.size.height == height
        await pilot.press("tab")
        assert app.sequences.has_focus


async def test_only_changed_cells_are_written(path: Path) -> None:
    async with watching(path) as (daemon, app, pilot):
        written: list[str] = []
        update_cell = app.sequences.update_cell

        def spy(row: str, column: str, value: object, **options: bool) -> None:
            written.append(column)
            update_cell(row, column, value, **options)

        app.sequences.update_cell = spy  # type: ignore[method-assign,assignment]
        old = daemon.snapshot
        changed = old.sequences[0].__class__(1000, "decode", "gpu0", 99.0, 64, 74, 9, 256, 5, -1, 0)
        daemon.snapshot = msgspec.structs.replace(
            old, time_s=old.time_s + 1, sequences=(changed, *old.sequences[1:])
        )
        await until(pilot, lambda: "1m 39s" in screen_text(app))
    assert set(written) <= {"age", "output", "blocks", "prompt"}
    assert len(written) == len(set(written))


async def test_rows_come_and_go_by_key(path: Path) -> None:
    async with watching(path) as (daemon, app, pilot):
        assert ids(app) == [*range(1000, 1024), *range(2000, 2006)]
        daemon.snapshot = scenario.snapshot(30, num_running=4, num_waiting=1)
        await until(pilot, lambda: ids(app) == [1000, 1001, 1002, 1003, 2000])
        daemon.snapshot = scenario.snapshot(31, num_running=6, num_waiting=2)
        await until(pilot, lambda: ids(app) == [*range(1000, 1006), 2000, 2001])


async def test_rates_appear(path: Path) -> None:
    async with watching(path) as (daemon, app, pilot):
        for step in range(12, 20, 2):
            daemon.snapshot = scenario.snapshot(step)
            await pilot.pause(0.5)
        assert app.history.output()
        text = screen_text(app)
    assert "█" in text
    assert "scale" in text


async def test_a_lost_daemon_is_said_and_found_again_within_two_seconds(path: Path) -> None:
    async with watching(path) as (daemon, app, pilot):
        await daemon.stop()
        await until(pilot, lambda: "disconnected for" in screen_text(app), 2.0)
        assert "✕ disconnected" in screen_text(app).splitlines()[0]
        await pilot.press("s")
        assert app.sequences.sort_name == "oldest first"
        await pilot.pause(1.5)
        daemon.snapshot = scenario.snapshot(40, num_running=3, num_waiting=0)
        await daemon.start()
        took_s = await until(pilot, lambda: app.sequences.row_count == 3)
        await until(pilot, lambda: not app.banner.display)
        assert took_s <= 2.0
        assert "disconnected" not in screen_text(app)


async def test_it_waits_for_a_daemon_that_is_not_there_yet(path: Path) -> None:
    app = LlmdTop(path)
    daemon = Daemon(path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "no such socket" in app.banner.text)
        await daemon.start()
        await until(pilot, lambda: app.sequences.row_count > 0, 2.0)
    await daemon.stop()


async def test_sort_cycles(path: Path) -> None:
    async with watching(path) as (daemon, app, pilot):
        for name in list(SORTS)[1:]:
            await pilot.press("s")
            assert app.sequences.sort_name == name
            key = SORTS[name]
            assert key
            wanted = [s.sequence for s in sorted(daemon.snapshot.sequences, key=key)]
            assert ids(app) == wanted
            assert name in screen_text(app)
        await pilot.press("s")
        assert ids(app) == [s.sequence for s in daemon.snapshot.sequences]


async def test_filter(path: Path) -> None:
    async with watching(path) as (_daemon, app, pilot):
        await pilot.press("slash", *"pref", "space", *"u1")
        assert ids(app) == [1003, 1009, 1015, 1021]
        await pilot.press("enter")
        assert not app.filter_line.has_class("-open")
        assert "filter: pref u1" in screen_text(app)
        await pilot.press("s")
        assert sorted(ids(app)) == [1003, 1009, 1015, 1021]
        await pilot.press("slash", "escape")
        assert app.sequences.row_count == 30
        assert app.sequences.has_focus


async def test_a_filter_is_text_and_no_markup(path: Path) -> None:
    async with watching(path) as (_daemon, app, pilot):
        await pilot.press("slash", "[", "r", "e", "d", "]", "[", "/", "enter")
        assert app.sequences.row_count == 0
        await pilot.press("slash", "escape")
        assert app.sequences.row_count == 30


async def test_pause_holds_the_picture(path: Path) -> None:
    async with watching(path) as (daemon, app, pilot):
        await pilot.press("p")
        daemon.snapshot = scenario.snapshot(50, num_running=2, num_waiting=0)
        await pilot.pause(1.2)
        assert app.sequences.row_count == 30
        assert "paused" in screen_text(app)
        await pilot.press("p")
        assert app.sequences.row_count == 2


async def test_five_hundred_sequences(path: Path) -> None:
    crowd = scenario.snapshot(10, num_running=520, num_waiting=200)
    async with watching(path, first=crowd) as (daemon, app, pilot):
        await until(pilot, lambda: app.sequences.row_count == 500)
        daemon.snapshot = scenario.snapshot(30, num_running=510, num_waiting=200)
        await pilot.pause(1.0)
        await pilot.press("s", "s")
        assert app.sequences.row_count == 500
        assert "500 of 710" in screen_text(app)
        assert app.sequences.sort_name == "state"


async def test_loading_is_shown_as_progress(path: Path) -> None:
    async with watching(path, first=scenario.starting(0.25)) as (daemon, app, pilot):
        await pilot.pause(0.3)
        text = screen_text(app)
        assert "◐ loading" in text
        assert "25 %" in text
        assert not app.sequences.display
        daemon.snapshot = scenario.starting(0.75)
        await until(pilot, lambda: "75 %" in screen_text(app))
        daemon.snapshot = scenario.snapshot(2, names=("gpu0",))
        await until(pilot, lambda: app.sequences.display)
        assert not app.loading_panel.display
        await until(pilot, lambda: app.sequences.has_focus)


async def test_the_help_fits_the_smallest_screen(path: Path) -> None:
    async with watching(path, (80, 24)) as (_daemon, app, pilot):
        await pilot.press("question_mark")
        await pilot.pause(0.1)
        text = screen_text(app)
    for words in ("q  quit", "0 is served first", "■ held", "■ gpu  □ host  ◧ both  ⇄ moving"):
        assert words in text


async def test_help_opens_and_closes_while_snapshots_come(path: Path) -> None:
    async with watching(path) as (daemon, app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        daemon.snapshot = scenario.snapshot(60, num_running=1, num_waiting=0)
        await until(pilot, lambda: app.sequences.row_count == 1)
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)


async def test_tab_moves_between_tables_and_q_quits(path: Path) -> None:
    async with watching(path) as (_daemon, app, pilot):
        assert app.sequences.has_focus
        await pilot.press("tab")
        assert app.instances.has_focus
        await pilot.press("tab")
        assert app.sequences.has_focus
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running or app._exit


async def test_resizing_keeps_every_row(path: Path) -> None:
    async with watching(path, (200, 60)) as (_daemon, app, pilot):
        for size in ((80, 24), (120, 40), (60, 15)):
            await pilot.resize_terminal(*size)
            await pilot.pause(0.3)
            assert app.sequences.row_count == 30
            assert all(len(line) <= size[0] for line in screen_text(app).splitlines())


async def test_hostile_names_are_only_text(path: Path) -> None:
    snapshot = msgspec.structs.replace(
        scenario.snapshot(3), model="[bold]x[/nope]\x1b[2J", status="[red]", url="[@click=q]u"
    )
    async with watching(path, first=snapshot) as (_daemon, app, pilot):
        await pilot.pause(0.3)
        assert "[bold]x[/nope]�[2J" in screen_text(app)
