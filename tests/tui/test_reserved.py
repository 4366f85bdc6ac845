"""What is kept of a pool by predictions: loans below their hosts, both queues, groups, the peak."""

import msgspec
import pytest
from rich.text import Text

from daemon.core.view.view import snapshot
from daemon.protocol.control import LendingStatus, LoanStatus, Snapshot
from daemon.wire.columns import decoder, encoder
from tests.core.driver import Driver, configured
from tests.tui import keeping, scenario
from tests.tui.driving import watching
from tui.lending import loan_lines, placed
from tui.plain import frame
from tui.reserved import step_use
from tui.screens.blocks import BlocksScreen
from tui.screens.instance import InstanceScreen


def shown(lending: LendingStatus, width: int = 100, height: int = 20) -> list[str]:
    return [line.plain.rstrip() for line in loan_lines(lending, 16, width, height)]


def lending() -> LendingStatus:
    kept = keeping.lending(10).instances[0].reserved
    assert kept is not None and kept.lending is not None
    return kept.lending


def test_a_borrower_lies_where_its_lender_needs_the_blocks() -> None:
    rows = {one.row.sequence: one for one in placed(lending().shown, 16)}
    assert (rows[1002].first, rows[1002].end) == (0, 100)
    assert rows[1002].lent == ((50, 70), (70, 100))
    assert (rows[1004].first, rows[1004].end, rows[1004].left) == (50, 70, 160)
    assert rows[1004].held == 7, "five of its twelve blocks are its own"
    assert rows[1004].lent == ((62, 70),), "its blocks 17 to 25, of which 5 lie before the host's"
    assert (rows[1006].first, rows[1006].end, rows[1006].depth) == (62, 70, 2)
    assert rows[1012].first == 30, "another host begins anew"
    orphan = LoanStatus(7, 99, 3, 64, 10, 1, 4, 0)
    assert placed((orphan,), 16) == []


def test_loans_are_bars_below_their_hosts_with_what_is_due_when() -> None:
    lines = shown(lending())
    labels = [line.split("  ")[0] if line[0] != " " else line[:12].strip() for line in lines]
    assert [label.split("█")[0].strip() for label in labels[:4]] == [
        "1002", "└ 1004", "└ 1006", "└ 1008",
    ]  # fmt: skip
    bars = [line[12:66] for line in lines]
    assert bars[0] == "█" * 22 + "─" * 5 + "▒" * 27
    assert bars[1].startswith(" " * 27 + "█" * 4) and bars[1].rstrip().endswith("▒")
    assert lines[0].endswith("holds 40 of 100, lends 50")
    assert lines[1].endswith("20 due at 800, in 160, lends 8")
    assert lines[2].endswith("8 due at 272, in 92")
    assert lines[-1] == "and 3 more loans"
    assert shown(lending(), height=3)[1:] == [lines[1], "and 6 more loans"]
    assert shown(lending(), height=0) == []
    narrow = shown(lending(), width=50)
    assert narrow[1] == "└ 1004      20 due at 800, in 160, lends 8"
    assert shown(LendingStatus()) == []


def test_long_ids_and_numbers_are_never_cut_where_they_would_say_another() -> None:
    rows = [LoanStatus(128_000_001, -1, 0, -1, 1640, 1040, 2100, 1150)]
    for depth in range(1, 6):
        host = rows[-1].sequence
        rows.append(LoanStatus(host + 128, host, 1050 - depth, 2048, 820, 12, 1050, 1020))
    lines = shown(LendingStatus(5, 5, 99, 0, tuple(rows)), width=76)
    assert [line[:12].rstrip() for line in lines] == [
        "128000001", "└ 128000129", "  └ …000257", "    └ …0385", "      └ …13", "      └ …41",
    ]  # fmt: skip
    assert lines[1].endswith("1049 due at 2048, in 408, lends 1020")
    assert all(len(line) <= 76 for line in lines)


def test_one_whose_host_is_near_is_marked() -> None:
    def colours(num_tokens: int) -> set[str]:
        host = LoanStatus(1, -1, 0, -1, num_tokens, 5, 20, 6)
        rows = (host, LoanStatus(2, 1, 6, 224, 10, 2, 8, 0))
        loans = LendingStatus(num_hosts=1, num_loans=1, num_blocks=6, shown=rows)
        words: Text = loan_lines(loans, 16, 40, 4)[1]
        return {str(span.style) for span in words.spans}

    assert colours(100) != colours(200)


async def test_the_kv_map_shows_loans_queues_groups_and_the_newest_steps() -> None:
    async with watching(keeping.lending(10), size=(120, 40)) as top:
        text = await top.press("k")
        assert isinstance(top.app.screen, BlocksScreen)
        for words in (
            "73 blocks in 7 loans, 5 owed",
            "3 prompts wait",
            "3 answers ready, hold 21 blocks",
            "41 % written",
            "512:4+2 1024:2+1 96:1 and 11 more",
            "20 due at 800, in 160, lends 8",
            "and 3 more loans",
            "steps ",
        ):
            assert words in text, words
        assert "kept by predictions" not in await top.press("n"), "the other one keeps nothing"
        assert "kept by predictions" in await top.press("n")
        text = await top.tell(keeping.packing(12))
        assert "95 % of the pool: 1946 blocks in 83 steps" in text
        assert "loans" not in text and "and 11 more" not in text
        assert "kept by predictions" not in await top.tell(scenario.snapshot(14))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_nothing_that_a_reader_needs_is_cut(size: tuple[int, int]) -> None:
    async with watching(keeping.lending(10), size=size) as top:
        text = await top.press("k")
        for words in (
            "41 % written, 69 % held",
            "3 prompts wait   ● 3 answers ready, hold 21 blocks",
            "512:4+2 1024:2+1 96:1 and 11 more",
            "holds 40 of 100, lends 50",
            "20 due at 800, in 160, lends 8",
            "more loans",
            "73 blocks in 7 loans, 5 owed",
            "? help",
        ):
            assert words in text, words
        lines = text.splitlines()
        assert len(lines) == size[1] and all(len(line) == size[0] for line in lines)
        assert sum("■■" in line for line in lines) >= 6, "the map has its place"
        text = await top.tell(keeping.packing(12))
        assert "96:3" in text and "95 % of the pool: 1946 blocks in 83 steps" in text


async def test_the_kv_map_shows_the_loan_of_a_core_that_lends() -> None:
    """The instance is as the Core tells it; the daemon around it is invented."""
    driver = Driver(configured("synced", prefix_cache=False), 30)
    lender = driver.arrive([1] * 8, 96)
    driver.predict(lender, 96)
    for _ in range(2):
        driver.answer()
    borrower = driver.arrive([2] * 4, 30)
    driver.predict(borrower, 30)
    while not len(driver.core.instances[0].scheduler.kv.lending):
        driver.answer()
    seen = snapshot(driver.core, driver.now)
    busy = scenario.snapshot(10)
    instances = seen.instances[0], *busy.instances[1:]
    async with watching(
        msgspec.structs.replace(busy, instances=instances, sequences=seen.sequences)
    ) as top:
        text = await top.press("k")
        assert "8 blocks in 1 loan " in text
        assert f"└ {borrower * 128}" in text and "8 due at 72" in text
        while borrower * 128 in driver.alive:
            driver.answer()
        seen = snapshot(driver.core, driver.now)
        instances = seen.instances[0], *busy.instances[1:]
        text = await top.tell(
            msgspec.structs.replace(busy, instances=instances, sequences=seen.sequences)
        )
        assert "0 blocks in 0 loans" in text and "due at" not in text


async def test_an_instance_and_the_overview_tell_both_queues() -> None:
    async with watching(keeping.lending(10), size=(112, 44)) as top:
        text = await top.picture()
        assert "3 prompts, 3 ready" in text and "10 waiting · 3 ready" in text
        text = await top.press("tab", "enter")
        assert isinstance(top.app.screen, InstanceScreen)
        for words in ("3 wait, hold 21 blocks", "73 blocks in 7 loans", "/512 tokens", "41 %"):
            assert words in text, words
        one = keeping.lending(10).instances[0]
        assert step_use(one, 20) in text
        text = await top.tell(keeping.packing(12))
        assert "1946 blocks in 83 steps" in text and "lent" not in text


def test_the_newest_steps_stand_at_the_right() -> None:
    one = msgspec.structs.replace(
        keeping.lending(10).instances[0], batch_budget=80, newest_tokens=(80, 0, 40, 80)
    )
    assert step_use(one, 3) == " ▄█ 50 %"
    assert step_use(one, 9) == "█ ▄█ 62 %"


def test_the_plain_frame_tells_what_is_lent_and_the_peak() -> None:
    told = frame(keeping.lending(10)).splitlines()
    assert "  lent        gpu0: 73 blocks in 7 loans, 5 owed" in told
    assert any(line.endswith("3 prompts, 3 ready") for line in told)
    assert (
        "  peak        gpu0: 1946 blocks in 83 steps, of 2048"
        in frame(keeping.packing(10)).splitlines()
    )


def test_what_an_older_daemon_wrote_down_is_read() -> None:
    """It lacks what was added; then nothing of it is shown."""
    plain = msgspec.msgpack.decode(encoder().encode(keeping.lending(10)))
    for one in plain["instances"]:
        for name in ("kv_written", "batch_budget", "newest_tokens", "reserved"):
            del one[name]
    older = decoder(Snapshot).decode(msgspec.msgpack.encode(plain))
    told = frame(older)
    assert older.instances[0].reserved is None and "synced" not in told
    assert told == frame(scenario.snapshot(10))
