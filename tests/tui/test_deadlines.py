"""SLO classes: what was kept since the start and lately, who lives, and the first deadline."""

from collections.abc import Callable

import msgspec
import pytest

from daemon.protocol.control import Due, DueNow, Snapshot
from daemon.wire.columns import decoder, encoder
from tests.tui import due, scenario
from tests.tui.driving import watching
from tui.deadlines import COLUMNS, DueRow, due_rows, left_words
from tui.palette import ink
from tui.plain import frame
from tui.rates import History


def cells(row: DueRow) -> dict[str, str]:
    return {one.key: one.cell(row, one.width).text for one in COLUMNS}


def test_a_row_tells_a_class_since_the_start_lately_and_now() -> None:
    own, strict, lax, begun = due_rows(due.classes(10), {1.5: Due(1.5, 6, 2), 3.0: Due(3.0)})
    assert cells(strict) == {
        "class": "1.5 x",
        "kept": "90",
        "missed": "30",
        "lately": "━━━━─  75 %",
        "running": "7",
        "waiting": "2",
        "late": "3",
        "first": "0.4 s",
    }
    assert [cells(own)[key] for key in ("class", "kept", "lately", "first")] == [
        "request", "41", "–", "–",
    ]  # fmt: skip
    assert cells(lax)["kept"] == "1.20 k" and cells(lax)["lately"] == "–", "none ended lately"
    assert [cells(begun)[key] for key in ("class", "kept", "waiting")] == ["6 x", "0", "1"]
    assert due_rows(scenario.snapshot(10), {}) == []


@pytest.mark.parametrize(("kept", "colour"), [(95, "good"), (94, "warn"), (79, "bad")])
def test_a_share_is_coloured_by_what_is_missed(kept: int, colour: str) -> None:
    row = DueRow(Due(2.0), Due(2.0, kept, 100 - kept), DueNow(2.0))
    lately = next(one for one in COLUMNS if one.key == "lately")
    assert lately.cell(row, 11).style == getattr(ink, colour)


def test_every_column_fits_the_narrowest_terminal() -> None:
    assert sum(one.width + 1 for one in COLUMNS) <= 74 and not any(one.rank for one in COLUMNS)


def test_lately_is_the_difference_of_two_minutes() -> None:
    history = History()
    assert history.deadlines() == {}
    history.add(due.classes(0))
    assert history.deadlines()[1.5] == Due(1.5, 0, 0)
    history.add(due.classes(200, extra=3))
    history.add(due.classes(260, extra=5))
    assert history.deadlines()[1.5] == Due(1.5, 0, 2), "the first is 130 s old"
    fewer = due.classes(262)
    counters = msgspec.structs.replace(fewer.counters, due=(Due(1.5, 1, 1), Due(9.0, 2, 0)))
    history.add(msgspec.structs.replace(fewer, counters=counters))
    assert history.deadlines() == {1.5: Due(1.5, 1, 1), 9.0: Due(9.0, 2, 0)}


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("busy", [scenario.snapshot, scenario.swapping])
async def test_the_overview_has_a_table_of_classes(
    size: tuple[int, int], busy: Callable[[int], Snapshot]
) -> None:
    first, last = busy(10), busy(12)
    async with watching(
        due.with_deadlines(first), due.with_deadlines(last, extra=4), size=size
    ) as top:
        text = await top.picture()
        table = top.app.overview.deadlines
        for label in ("class", "kept lately", "first due", "missed", "late", "1.5 x", "0.4 s"):
            assert label in text, label
        assert table.cell("1.5 x", "lately").text.endswith(" 0 %"), "four missed in this time"
        assert top.app.overview.sequences.size.height >= 3
        assert all(len(line) <= size[0] for line in text.splitlines())
        assert "first due" not in await top.tell(busy(14)), "it costs no line where there are none"


async def test_a_sequence_tells_its_deadline_and_the_time_left() -> None:
    async with watching(scenario.swapping(38), size=(80, 24)) as top:
        await top.press("down", "down", "enter")
        told = scenario.story(1002, scenario.swapping(38).time_s)
        late = msgspec.structs.replace(told, time_s=told.deadline_s + 2.9)
        assert "2.9 s late of 25" in await top.tell(late)
        by_class = msgspec.structs.replace(told, slo_scale=1.5)
        text = await top.tell(by_class)
        assert "3.0 s left of 25" in text and "s (1.5 x)" in text
        assert "deadline" not in await top.tell(msgspec.structs.replace(told, deadline_s=0.0))


def test_the_plain_frame_has_a_line_a_class() -> None:
    told = frame(due.classes(10)).splitlines()
    now = "7 running, 2 waiting, 3 late, the first 0.4 s left"
    assert f"  deadlines   1.5 x: 90 kept, 30 missed (75 % kept); {now}" in told
    assert "  deadlines   request: 41 kept, 2 missed (95 % kept)" in told
    assert "  deadlines   6 x: 0 kept, 0 missed; 0 running, 1 waiting" in told
    assert "deadlines" not in frame(scenario.snapshot(10))
    assert left_words(-61.0) == "1m 01s late"


def test_what_an_older_daemon_wrote_down_has_no_deadlines() -> None:
    plain = msgspec.msgpack.decode(encoder().encode(due.classes(10)))
    del plain["due"], plain["counters"]["due"]
    older = decoder(Snapshot).decode(msgspec.msgpack.encode(plain))
    assert due_rows(older, {}) == []
