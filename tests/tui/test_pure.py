"""What the dashboard derives from snapshots, without a terminal."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from daemon.protocol.control import BlockUse, Cause, Counters, RankStatus, Snapshot, StageStatus
from daemon.state.pause import NO_PAUSES, one_more
from tests.tui import scenario
from tui import format as human
from tui.blocks import cell_words, fit_map, heading, legend, looks_of, map_lines
from tui.chart import chart_lines, nice_ceiling
from tui.columns import fit
from tui.instances import COLUMNS as INSTANCES
from tui.instances import InstanceRow, index_of, rows_of
from tui.ordering import SORTS, arranged, next_sort
from tui.palette import block_colour, ink, residency_look
from tui.plain import frame
from tui.queues import COLUMNS as QUEUES
from tui.queues import QueueRow, has_queues, level_bars, level_counts
from tui.rates import History, LinkRates, Moment, Swapped, link_rates_between, rates_between
from tui.screens.instance import kernels
from tui.sequences import COLUMNS, columns_without_news


def moment(time_s: float, *, pid: int = 1, **counters: float) -> Moment:
    return Moment(pid, time_s, msgspec.convert(counters, Counters))


def at(step: int, **changes: object) -> Snapshot:
    return msgspec.structs.replace(scenario.snapshot(step), **changes)


def test_rates_are_differences_over_the_daemons_clock() -> None:
    old = moment(10.0, output_tokens=100, prompt_tokens=50, ttft_count=2, ttft_sum_s=1.0)
    new = moment(12.0, output_tokens=300, prompt_tokens=90, ttft_count=6, ttft_sum_s=2.0)
    rates = rates_between(old, new)
    assert (rates.output_tokens_per_s, rates.prompt_tokens_per_s) == (100.0, 20.0)
    assert rates.ttft_s == pytest.approx(0.25)


def test_pauses_of_every_cause_are_averaged() -> None:
    old, new = moment(10.0), moment(12.0)
    before = one_more(NO_PAUSES, Cause.SWAPPED, 7.0, 2)
    after = one_more(one_more(before, Cause.SWAPPED, 1.0), Cause.WORKER_LOST, 2.0, 3)
    old = replace(old, counters=Counters(pauses=before))
    assert rates_between(old, old).pause_s is None
    new = replace(new, counters=Counters(pauses=after))
    assert rates_between(old, new).pause_s == pytest.approx(7.0 / 4)


def test_no_first_token_is_no_ttft_and_a_restart_is_no_rate() -> None:
    assert rates_between(moment(1.0), moment(2.0)).ttft_s is None
    restarted = rates_between(moment(9.0, output_tokens=9), moment(10.0, pid=2))
    assert restarted.output_tokens_per_s is None
    assert rates_between(moment(5.0), moment(5.0)).output_tokens_per_s is None


def test_history_makes_one_value_a_second_and_forgets_a_dead_daemon() -> None:
    history = History()
    for step in range(21):  # ten seconds, two snapshots each
        history.add(at(step, counters=Counters(output_tokens=50 * step)))
    assert history.output() == [100.0] * 10
    assert history.now().output_tokens_per_s == 100.0
    history.add(at(20))  # the same moment again
    assert len(history.output()) == 10
    history.add(at(0, pid=7, time_s=3.0, counters=Counters()))
    assert history.now().output_tokens_per_s is None
    history.add(at(0, pid=7, time_s=4.0, counters=Counters(output_tokens=8)))
    assert history.output()[-1] == 8.0
    assert min(value for value in history.output() if value is not None) >= 0


def test_history_is_bounded() -> None:
    history = History()
    snapshot = scenario.snapshot(0)
    for step in range(3000):
        history.add(msgspec.structs.replace(snapshot, time_s=float(step)))
    assert len(history.output()) <= 600


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1234, "1.23 k"),
        (31_040, "31.0 k"),
        (999_999, "1.00 M"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert human.count(value) == text


def test_units() -> None:
    assert human.latency(0.0125) == "12.5 ms"
    assert human.latency(1.239) == "1.24 s"
    assert human.latency(0.00085) == "850 us"
    assert human.latency(None) == human.rate(None) == "–"
    assert human.size(1_474_560 * 1000) == "1.37 GiB"
    assert human.size(1023 * 1024 * 1024) == "1.00 GiB"
    assert [human.duration(s) for s in (4.2, 48, 184, 7620, 442_800)] == [
        "4.2 s", "48 s", "3m 04s", "2h 07m", "5d 03h",
    ]  # fmt: skip
    assert human.percent(0.045) == "  4 %"
    assert human.rate(0.25) == "0.2"


@pytest.mark.parametrize("fraction", [-1.0, 0.0, 0.3, 0.5, 1.0, 7.0])
def test_a_bar_has_its_width(fraction: float) -> None:
    drawn = human.bar(fraction, 10)
    assert len(drawn) == 10
    assert drawn.count(human.BAR_FULL) == round(min(max(fraction, 0), 1) * 10)


def test_control_characters_never_reach_the_terminal() -> None:
    assert human.printable("a\x1b[31mb\n") == "a�[31mb�"
    assert human.printable("abcdefgh", 5) == "abcd…"


def test_sorts_and_filters() -> None:
    sequences = scenario.snapshot(9).sequences
    assert arranged(sequences, "daemon's order", "") == list(sequences)
    ages = [s.age_s for s in arranged(sequences, "oldest first", "")]
    assert ages == sorted(ages, reverse=True)
    blocks = [s.num_blocks for s in arranged(sequences, "most blocks", "")]
    assert blocks == sorted(blocks, reverse=True)
    both = arranged(sequences, "state", "DECODE gpu1")
    assert both
    assert {(s.state, s.instance) for s in both} == {("decode", "gpu1")}
    assert [s.sequence for s in arranged(sequences, "state", "1007")] == [1007]
    placed = scenario.swapping(9).sequences
    assert {s.residency for s in arranged(placed, "level", "host")} == {"host"}
    levels = [s.level for s in arranged(placed, "level", "")]
    assert levels == sorted(levels) and levels[0] < levels[-1]
    left = [s.predicted_tokens - s.num_output_tokens for s in arranged(placed, "least left", "")]
    known = left[: left.index(-1)]  # what has no prediction, and no output, comes last
    assert [max(0, n) for n in known] == sorted(max(0, n) for n in known)
    assert set(left[len(known) :]) == {-1}
    assert arranged(sequences, "state", "nothing-like-it") == []


def test_the_sort_cycle_comes_round() -> None:
    names = [next(iter(SORTS))]
    for _ in SORTS:
        names.append(next_sort(names[-1]))
    assert names[0] == names[-1]
    assert set(names) == set(SORTS)


UNNAMED = frozenset({"request", "key"})
"""Columns of what no client has told."""


def test_columns_fit_from_80_cells_up() -> None:
    plain = [c for c in COLUMNS if c.key not in columns_without_news(scenario.snapshot(1))]
    for available in range(74, 260):
        fitted = fit(plain, available)
        assert sum(column.padded for column in fitted) <= available
        assert [column.key for column in fitted] == [column.key for column in plain]
    assert [c.key for c in fit(plain, 68)] == [c.key for c in plain if c.key != "priority"]


def test_levels_and_predictions_take_the_place_of_others_at_80_cells() -> None:
    assert columns_without_news(scenario.swapping(1)) == UNNAMED
    shown = {column.key for column in fit(COLUMNS, 74)}
    assert {c.key for c in COLUMNS} - shown == {"priority", "preemptions", *UNNAMED}
    assert sum(column.padded for column in fit(COLUMNS, 74)) <= 74
    assert sum(column.padded for column in fit(QUEUES, 74)) <= 74
    assert [column.key for column in fit(COLUMNS, 99)] == [column.key for column in COLUMNS]


def test_columns_come_with_what_they_show() -> None:
    plain, full = scenario.snapshot(1), scenario.swapping(1)
    assert columns_without_news(plain) == {"predicted", "level"} | UNNAMED
    learned = msgspec.structs.replace(plain, counters=Counters(prediction_count=1))
    assert columns_without_news(learned) == {"level"} | UNNAMED
    unlevelled = tuple(msgspec.structs.replace(i, levels=()) for i in full.instances)
    without = columns_without_news(msgspec.structs.replace(full, instances=unlevelled))
    assert without == {"level"} | UNNAMED
    alone = msgspec.structs.replace(full, instances=full.instances[:1])
    assert columns_without_news(alone) == {"instance"} | UNNAMED
    named = msgspec.structs.replace(full.sequences[0], request_id="job-1", key="alice")
    assert not columns_without_news(msgspec.structs.replace(full, sequences=(named,)))


def cell(key: str, width: int, **changes: object) -> tuple[str, str]:
    """Text and colour of a sequence's cell."""
    fields = {"num_output_tokens": 80, "num_blocks": 9, **changes}
    changed = msgspec.structs.replace(scenario.sequence(0, 1, ("gpu0",)), **fields)
    return next(column for column in COLUMNS if column.key == key).cell(changed, width)


def test_a_prediction_is_marked_once_it_is_exceeded() -> None:
    assert cell("predicted", 6) == ("–", ink.faint)
    assert cell("predicted", 6, predicted_tokens=96) == ("96", ink.muted)
    assert cell("predicted", 11, predicted_tokens=80) == ("80/80", ink.muted)
    assert cell("predicted", 6, predicted_tokens=79) == ("79!", ink.warn)
    assert cell("predicted", 11, predicted_tokens=79) == ("80/79!", ink.warn)


def test_blocks_say_where_they_are() -> None:
    assert cell("blocks", 8) == ("9", ink.text)
    assert cell("blocks", 8, residency="device") == ("■ 9", residency_look("device")[1])
    host = {"residency": "host", "num_blocks": 0, "num_host_blocks": 1240}
    assert cell("blocks", 8, **host) == ("□ 1.24 k", residency_look("host")[1])
    both = {"residency": "both", "num_host_blocks": 4}
    assert cell("blocks", 8, **both) == ("◧ 4/9", residency_look("both")[1])
    assert cell("blocks", 8, **{**both, "num_blocks": 90_000}).text == "◧ 90.0 k"
    assert cell("blocks", 8, residency="moving") == ("⇄ 9", residency_look("moving")[1])
    assert cell("blocks", 8, residency="elsewhere") == ("◇ 9", residency_look("elsewhere")[1])
    assert cell("blocks", 8, residency="unheard of")[0] == "? 9"


def test_levels_are_a_bar_row_and_counts() -> None:
    assert level_bars((12, 6, 0, 3, 0, 0)) == "█▄·▂"
    assert level_bars((0, 0, 5)) == "··█"
    assert level_bars((1000, 1)) == "█▁"
    assert level_bars((0, 0)) == level_bars(()) == ""
    assert level_counts((12, 6, 0, 3, 0)) == "0:12 1:6 3:3"


def queue_cells(link: LinkRates, **changes: object) -> dict[str, str]:
    """An instance's row in the queues table."""
    instance = msgspec.structs.replace(scenario.swapping(1).instances[0], **changes)
    return {c.key: c.cell(QueueRow(instance, link), c.width).text for c in QUEUES}


def test_a_row_of_the_queues_table() -> None:
    cells = queue_cells(LinkRates(0.34, 3e8, 0.0), host_held=512)
    assert cells == {
        "name": "gpu0",
        "levels": "█▅·▂··▁ 0:13 1:8 3:3 6:1",
        "host": "━╸─  50 %",
        "pool": "512/1.02 k",
        "link": " 34 %",
        "out": "286 MiB/s",
        "in": "0 B/s",
    }
    unknown = queue_cells(LinkRates(), levels=(0, 0), host_blocks=0)
    assert [unknown[key] for key in ("levels", "host", "link", "out")] == ["empty", "–", "–", "–"]
    assert queue_cells(LinkRates(), levels=())["levels"] == "–"


def test_only_what_has_levels_or_a_host_pool_has_queues() -> None:
    plain, full = scenario.snapshot(1).instances[0], scenario.swapping(1).instances[0]
    assert has_queues(full) and not has_queues(plain)
    assert has_queues(msgspec.structs.replace(plain, levels=(0, 0)))
    assert has_queues(msgspec.structs.replace(plain, host_blocks=1))


def test_link_rates_are_differences_over_the_daemons_clock() -> None:
    old = Moment(1, 10.0, Counters(), (Swapped(1000, 500, 1.0), Swapped(0, 0, 0.0)))
    new = Moment(1, 12.0, Counters(), (Swapped(5000, 500, 2.5), Swapped(0, 8, 4.0)))
    assert link_rates_between(old, new) == [
        LinkRates(0.75, 2000.0, 0.0),
        LinkRates(2.0, 0.0, 4.0),
    ]
    unknown = [LinkRates()] * 2
    assert link_rates_between(new, new) == unknown
    assert link_rates_between(Moment(2, 1.0, Counters(), old.swapped), new) == unknown
    assert link_rates_between(Moment(1, 1.0, Counters()), new) == unknown
    started_anew = link_rates_between(new, Moment(1, 13.0, Counters(), old.swapped))
    assert started_anew == [LinkRates(0.0, 0.0, 0.0)] * 2


def test_the_history_knows_the_links_of_the_last_seconds() -> None:
    history = History()
    assert history.links() == []
    for step in range(21):
        history.add(scenario.swapping(step))
    link = history.links()[1]
    assert link.busy == pytest.approx(0.34)
    assert link.out_bytes_per_s == pytest.approx(2 * scenario.RATE_OUT * scenario.BLOCK_BYTES)
    assert link.in_bytes_per_s == pytest.approx(2 * scenario.RATE_IN * scenario.BLOCK_BYTES)


def test_a_long_id_keeps_its_end() -> None:
    long = msgspec.structs.replace(scenario.sequence(0, 1, ("gpu0",)), sequence=12_345_678)
    assert COLUMNS[0].cell(long, 6).text == "…45678"
    assert COLUMNS[0].cell(long, 8).text == "12345678"


def test_a_block_map_keeps_its_proportions() -> None:
    blocks = np.repeat(np.array([BlockUse.HELD, BlockUse.FREE], dtype=np.uint8), 1024)
    assert np.count_nonzero(fit_map(blocks, 100) == BlockUse.HELD) == 50
    few = np.array([BlockUse.HELD, BlockUse.FREE, BlockUse.CACHED], dtype=np.uint8)
    assert fit_map(few, 6).tolist() == [3, 3, 0, 0, 1, 1]
    newer = msgspec.structs.replace(
        scenario.instance("gpu0", 1), block_map=np.array([200], dtype=np.uint8)
    )
    assert fit_map(looks_of(newer), 4).tolist() == [3, 3, 3, 3]


def test_a_map_tells_held_blocks_of_each_kind_of_layers_apart() -> None:
    pool = scenario.by_kind(scenario.instance("gpu0", 1), [3, 3, 3, 1, 2, 0], [0, 1, 2, 1, 0, 1])
    full, window, other, *uses = looks_of(pool).tolist()
    assert len({full, window, other, *uses}) == 6 and uses == [1, 2, 0]
    assert block_colour(full) == block_colour(BlockUse.HELD) != block_colour(window)
    assert len(set(map_lines(looks_of(pool), 6, 1, coloured=False)[0].plain)) == 6
    words = [cell_words(pool, None, cell).partition(": ")[2] for cell in range(6)]
    assert words[1:4] == ["held, window 4,096", "held, new kind", "cached, window 4,096"]
    assert words[0] == "held, full" and words[-1] == "free"
    shown = [part.plain for part in legend((pool, scenario.instance("gpu1", 1)))]
    assert shown[:3] == ["■ full 1", "■ window 1", "■ new kind 1"]
    assert shown[3].startswith("■ held ")
    assert "(1 full, 1 window 4,096, 1 new kind)" in heading(pool, 100).plain
    assert "gpu0: 1 full, 1 window 4,096, 1 new kind" in frame(at(1, instances=(pool,)))


def test_map_lines_have_their_width() -> None:
    lines = map_lines(scenario.block_map(777, 0.5, 1), 33, 4)
    assert [line.cell_len for line in lines] == [33] * 4
    assert [line.plain for line in map_lines(np.zeros(0, dtype=np.uint8), 5, 2)] == ["     "] * 2


def test_chart() -> None:
    assert chart_lines([None, 0.0, 4.0, 8.0, 16.0], 16.0, 6, 2) == ["     █", "   ▄██"]
    assert chart_lines([0.001], 16.0, 2, 1) == [" ▁"]
    assert chart_lines([1.0] * 50, 1.0, 3, 1) == ["███"]


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (0.16, 0.2), (1, 1), (1.1, 2), (2600, 3000), (7000, 10000)]
)
def test_nice_ceiling(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == pytest.approx(ceiling)


def test_ranks_have_rows_below_their_instance() -> None:
    ranks = (RankStatus(70, "ready", 300 << 20), RankStatus(71, "stopped", 280 << 20, "cuda:1"))
    one = msgspec.structs.replace(scenario.instance("cpu", 0), device="cpu:tp2", ranks=ranks)
    second = InstanceRow(one, None, 1)
    texts = {column.key: column.cell(second, 12).text for column in INSTANCES}
    assert {key: text for key, text in texts.items() if text} == {
        "name": " rank 1",
        "device": "cuda:1 71",
        "state": "◌ stopped",
        "kv": "280 MiB",
    }
    snapshot = msgspec.structs.replace(scenario.snapshot(1), instances=(one,), gpus=())
    keys = [key for key, _ in rows_of(snapshot)]
    assert keys == ["0", "0.0", "0.1"] and [index_of(key) for key in keys] == [0, 0, 0]


def test_a_stage_has_its_bubbles_in_its_row() -> None:
    ranks = (RankStatus(70, "ready", 300 << 20), RankStatus(71, "ready", 280 << 20))
    stages = StageStatus(9.0, (8.0, 7.0), 2.0, (1.5, 1.9))
    one = msgspec.structs.replace(
        scenario.instance("cpu", 0), device="cpu:pp2", ranks=ranks, stages=stages
    )
    gpu = next(column for column in INSTANCES if column.key == "gpu")
    found = [gpu.cell(InstanceRow(one, None, rank), 12).text for rank in (0, 1)]
    assert found == ["5 % bubble", "25 % bubble"]


def test_a_node_has_a_row_below_its_instance() -> None:
    one = msgspec.structs.replace(scenario.instance("cpu", 0), node="second")
    snapshot = msgspec.structs.replace(scenario.snapshot(1), instances=(one,), gpus=())
    (key, row), (below, node) = rows_of(snapshot)
    assert (key, below, index_of(below)) == ("0", "0.node", 0) and row.instance is node.instance
    texts = {column.key: column.cell(node, 12).text for column in INSTANCES}
    assert {key: text for key, text in texts.items() if text} == {
        "name": " on node",
        "kv": "second",
    }


def test_kernels_that_torch_stands_in_for_mark_the_state_and_have_their_reason() -> None:
    one = scenario.instance("gpu0", 0)
    slow = msgspec.structs.replace(one, fallbacks=(("decode", "not done\nin 60 s"),))
    column = next(column for column in INSTANCES if column.key == "state")
    plain, marked = (column.cell(InstanceRow(each, None), 12) for each in (one, slow))
    assert (plain.text, marked.text) == ("● ready", "● ready ▼")
    assert marked.style == ink.warn != plain.style
    assert not kernels(one)
    *_, (family, why) = kernels(slow)
    assert family == "decode" and str(why).startswith("not done") and "\n" not in str(why)
