"""The overview and what is the same on every screen, driven by keys."""

from itertools import count

import msgspec
import pytest
from textual import timer

from daemon.protocol.control import Snapshot
from tests.tui import scenario
from tests.tui.driving import watching
from tui import format as human
from tui.help import HelpScreen
from tui.ordering import SORTS
from tui.source import Disconnected

SIZES = [(80, 24), (100, 30), (120, 40), (200, 60)]


async def test_the_picture_fits_and_says_it_all_at_every_size() -> None:
    async with watching(size=SIZES[-1]) as top:
        for size in (*SIZES, (60, 15)):
            await top.pilot.resize_terminal(*size)
            text = await top.picture()
            assert all(len(line) <= size[0] for line in text.splitlines())
            assert len(top.app.overview.sequences.rows) == 30
            if size == (60, 15):
                continue
            for word in ("SmolLM2-135M-Instruct", "● ready", "127.0.0.1:8000", "20 running"):
                assert word in text
            for word in ("gpu0", "gpu1", "prefill", "cuda:0", "seq/tok", "held", "cached", "free"):
                assert word in text
            for word in ("● decode", "output/max", "blocks", "prio", "TTFT", "TPOT", "waiting"):
                assert word in text
            for key in ("q quit", "p pause", "s sort", "/ filter", "t tree", "k KV map", "? help"):
                assert key in text.splitlines()[-1]


async def test_a_legend_of_an_odd_number_of_uses_is_shown_where_the_border_has_no_room() -> None:
    pool = scenario.by_kind(scenario.instance("gpu0", 1), [3, 3, 1, 0], [0, 1, 1, 0])
    kinds = msgspec.structs.replace(pool.by_kind, kinds=pool.kv_kinds[:2])
    pool = msgspec.structs.replace(pool, by_kind=kinds)
    shown = msgspec.structs.replace(scenario.snapshot(10), instances=(pool,))
    async with watching(shown, size=(150, 60)) as top:
        for size in ((150, 60), (120, 40), (80, 24)):
            await top.pilot.resize_terminal(*size)
            assert "full 1" in await top.picture()


async def test_a_size_is_taken_though_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = count(0.0, 0.02)
    async with watching(size=(120, 40)) as top:
        monkeypatch.setattr(timer._time, "get_time", lambda: next(now_s))
        for width in (100, 80):
            await top.pilot.resize_terminal(width, 24)
            assert max(map(len, (await top.picture()).splitlines())) == width


async def test_levels_and_swapping_have_their_place() -> None:
    async with watching(scenario.swapping(10), scenario.swapping(12), size=(80, 24)) as top:
        _has_levels(text := await top.picture())
        assert all(len(line) <= 80 for line in text.splitlines())
        sequences = top.app.overview.sequences
        assert sequences.size.height - 1 >= 3
        assert sequences.cell("1005", "predicted").text.strip() == "60!"
        assert sequences.cell("1005", "blocks").text.strip() == "□ 41"
        queues = top.app.overview.queues
        height = queues.size.height
        await top.press("tab", "tab")
        assert queues.has_focus and queues.size.height == height
        await top.pilot.resize_terminal(140, 42)
        _has_levels(text := await top.picture())
        assert all(len(line) <= 140 for line in text.splitlines())


def _has_levels(text: str) -> None:
    block_bytes = 2 * scenario.RATE_OUT * scenario.BLOCK_BYTES
    assert f"{human.size(block_bytes)}/s" in text
    for word in ("levels", "█▅·▂··▁ 0:12 1:8 3:3 6:1", "host used", "32 %", "link", "out", "in"):
        assert word in text
    for word in ("policy mlfq · swap proactive", "■ device  □ host  ◧ both  ⇄ moving", "34 %"):
        assert word in text
    for word in ("pred", "lv", "◧ 12/94", "● decode", "output/max", "TTFT", "held", "? help"):
        assert word in text


async def test_without_levels_a_host_pool_or_a_gpu_nothing_is_said_of_them() -> None:
    async with watching(size=(150, 40)) as top:
        before = await top.picture()
        full = await top.tell(scenario.with_gpus(scenario.swapping(12)))
        after = await top.tell(scenario.snapshot(14))
    for word in ("host used", " lv ", " pred ", "□ host", "GPU"):
        assert word in full
        assert word not in before and word not in after
    assert "72 W 61 °C" in full
    assert "policy sarathi · swap recompute" in after


async def test_only_changed_cells_are_painted() -> None:
    async with watching() as top:
        painted: list[int] = []
        table = top.app.overview.sequences
        refresh = table.refresh

        def spy(*regions: object, **options: bool) -> object:
            painted.extend([region.width for region in regions] or [1000])  # type: ignore[attr-defined]
            return refresh(*regions, **options)  # type: ignore[arg-type]

        table.refresh = spy  # type: ignore[method-assign,assignment]
        old = scenario.snapshot(10)
        changed = msgspec.structs.replace(old.sequences[0], age_s=99.0)
        sequences = (changed, *old.sequences[1:])
        text = await top.tell(msgspec.structs.replace(old, time_s=200.0, sequences=sequences))
        assert "1m 39s" in text
        assert len(painted) == 1 and painted[0] < 12
        await top.tell(msgspec.structs.replace(old, time_s=201.0, sequences=sequences))
        assert len(painted) == 1
        hidden = msgspec.structs.replace(old.sequences[-1], age_s=99.0)
        sequences = (*sequences[:-1], hidden)
        await top.tell(msgspec.structs.replace(old, time_s=202.0, sequences=sequences))
        assert len(painted) == 1, "a row out of sight was painted"
        assert "1m 39s" in (await top.press("end")).splitlines()[-3]


async def test_rows_come_and_go_by_key_and_the_cursor_stays_with_its_own() -> None:
    async with watching() as top:
        table = top.app.overview.sequences
        assert top.ids == [*range(1000, 1024), *range(2000, 2006)]
        await top.press("down", "down")
        assert table.cursor_key == "1002"
        await top.tell(scenario.snapshot(30, num_running=4, num_waiting=1))
        assert top.ids == [1000, 1001, 1002, 1003, 2000]
        await top.press("s", "s", "s")
        assert table.rows[table.cursor][0] == "1002"
        few = scenario.snapshot(31, num_running=2, num_waiting=0)
        await top.tell(few)
        assert table.cursor_key in {"1000", "1001"}


async def test_rates_appear() -> None:
    async with watching(*(scenario.snapshot(step) for step in range(12, 24, 2))) as top:
        text = await top.picture()
        assert top.app.watched.history.output()
    assert "█" in text
    assert "scale" in text


async def test_a_lost_daemon_is_said_and_keys_go_on() -> None:
    async with watching() as top:
        text = await top.tell(Disconnected(0.0, "nobody listens there"))
        assert "✕ disconnected" in text.splitlines()[0]
        assert "disconnected for" in text and "nobody listens there" in text
        await top.press("s")
        assert top.app.overview.sequences.sort_name == "oldest first"
        text = await top.tell(scenario.snapshot(40, num_running=3, num_waiting=0))
        assert "disconnected" not in text
        assert top.ids == [1000, 1001, 1002] or sorted(top.ids) == [1000, 1001, 1002]


async def test_sorting_filtering_and_pausing() -> None:
    async with watching() as top:
        snapshot = scenario.snapshot(10)
        table = top.app.overview.sequences
        for name in list(SORTS)[1:]:
            assert name in await top.press("s")
            key = SORTS[name]
            assert key
            assert top.ids == [s.sequence for s in sorted(snapshot.sequences, key=key)]
        await top.press("s")
        assert top.ids == [s.sequence for s in snapshot.sequences]
        await top.press("slash", *"pref", "space", *"u1")
        assert top.ids == [1003, 1009, 1015, 1021]
        assert "filter: pref u1" in await top.press("enter")
        assert not top.app.overview.filter_line.has_class("-open")
        await top.press("slash", "escape", "slash", "[", *"red", "]", "[", "/", "enter")
        assert len(table.rows) == 0, "a filter is text and no markup"
        await top.press("slash", "escape")
        assert len(table.rows) == 30 and table.has_focus
        assert "paused" in await top.press("p")
        text = await top.tell(scenario.snapshot(50, num_running=2, num_waiting=0))
        assert len(table.rows) == 30 and "paused" in text
        assert "paused" not in await top.press("p")
        assert len(table.rows) == 2


async def test_five_hundred_sequences() -> None:
    crowd = scenario.snapshot(10, num_running=520, num_waiting=200)
    async with watching(crowd) as top:
        assert len(top.ids) == 500
        await top.tell(scenario.snapshot(30, num_running=510, num_waiting=200))
        assert "500 of 710" in await top.press("s", "s")
        await top.press("pagedown", "end")
        table = top.app.overview.sequences
        assert table.cursor == 499
        assert table.scroll_offset.y == 500 - table.size.height + 1


async def test_loading_is_shown_as_progress() -> None:
    async with watching(scenario.starting(0.25)) as top:
        text = await top.picture()
        assert "◐ loading" in text
        assert "25 %" in text
        overview = top.app.overview
        assert not overview.sequences.display
        assert "75 %" in await top.tell(scenario.starting(0.75))
        assert "12 s left" in await top.tell(scenario.starting(0.8, left_s=12.2))
        await top.tell(scenario.snapshot(2, names=("gpu0",)))
        assert overview.sequences.display and not overview.loading_panel.display
        await top.picture()
        assert overview.sequences.has_focus


async def test_a_daemon_whose_devices_are_not_found_yet_has_nothing_to_open() -> None:
    early = msgspec.structs.replace(scenario.starting(0.0), instances=(), status="preparing")
    async with watching(early) as top:
        assert "preparing" in await top.picture()
        await top.press("t", "escape", "k", "escape", "tab", "enter")
        assert "25 %" in await top.tell(scenario.starting(0.25))


async def test_the_help_fits_the_smallest_screen_and_closes() -> None:
    async with watching(size=(80, 24)) as top:
        text = await top.press("question_mark")
        assert isinstance(top.app.screen, HelpScreen)
        for words in ("pause", "0 is served first", "■ held", "■ device  □ host  ◧ both  ⇄ moving"):
            assert words in text
        await top.tell(scenario.snapshot(60, num_running=1, num_waiting=0))
        assert top.ids == [1000], "the picture below goes on"
        await top.press("escape")
        assert not isinstance(top.app.screen, HelpScreen)
        assert top.app.overview.sequences.has_focus
        await top.press("tab")
        assert top.app.overview.instances.has_focus
        await top.pilot.press("q")
        assert top.app._exit


async def test_hostile_names_are_only_text() -> None:
    snapshot: Snapshot = msgspec.structs.replace(
        scenario.snapshot(3), model="[bold]x[/nope]\x1b[2J", status="[red]", url="[@click=q]u"
    )
    async with watching(snapshot) as top:
        assert "[bold]x[/nope]�[2J" in await top.picture()


async def test_without_colours_the_map_has_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with watching(size=(80, 40)) as top:
        assert "▀" not in (text := await top.picture())
        assert "██" in text and "··" in text


async def test_a_snapshot_that_comes_as_it_ends_is_left_alone() -> None:
    async with watching() as top:
        pass
    top.app.watched.hear(scenario.snapshot(11))
    top.app.ask()
    top.app.show()
    assert not top.app.screen_stack
