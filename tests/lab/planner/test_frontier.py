"""`benchmarks.frontier`: which cells and ways a text means, and what counts as a miss."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.frontier import runs
from benchmarks.frontier.cells import CELLS, MOONCAKE, WORKLOADS, capacities, chosen_cells, setting
from benchmarks.frontier.figure import line_of, plot, points_of
from benchmarks.frontier.measures import (
    GAP,
    LATENCY,
    MEASURES,
    CellFigures,
    Results,
    WayFigures,
)
from benchmarks.frontier.runs import Job, one_run
from benchmarks.frontier.tables import markdown, shown, table
from benchmarks.frontier.ways import BASELINES, WAYS, Unpaced, chosen_ways, swept
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.run import Prepared, prepare, run
from daemon.scheduler.policies import POLICIES


def _way(name: str, gap_s: float = 1.0, latency_s: float = 0.1) -> WayFigures:
    values = {one.title: [1.0] for one in MEASURES}
    told = {GAP.title: [gap_s - 0.5, gap_s + 0.5], LATENCY.title: [latency_s]}
    return WayFigures(name, {**values, **told}, gap_s, 0)


@pytest.fixture
def done() -> CellFigures:
    """A cell with a miss each of `mlfq` and `speculative`, and none of `gittins`."""
    recompute, swap = BASELINES
    ways = [
        _way(recompute.name, gap_s=8.0, latency_s=0.2),
        _way(swap.name, gap_s=20.0, latency_s=0.1),
        _way("mlfq", gap_s=13.0, latency_s=0.102),
        _way("speculative", gap_s=11.0, latency_s=0.104),
        _way("gittins:8 mean", gap_s=8.0, latency_s=0.05),
        _way("gittins mean", gap_s=4.0, latency_s=0.06),
        _way("gittins oracle", gap_s=4.0, latency_s=0.04),
    ]
    return CellFigures("skew/gamma:4", 0.9, "words", [0.8], 1.0, ways)


def test_a_workloads_name_means_all_its_arrivals() -> None:
    assert chosen_cells("skew/gamma:4,code") == ["skew/gamma:4", "code/poisson", "code/gamma:4"]
    assert chosen_cells("azure-70b") == ["azure-70b/gamma:4"]
    with pytest.raises(ValueError, match="no cell 'code/uniform'"):
        chosen_cells("code/uniform")


def test_baselines_always_run() -> None:
    names = [way.name for way in chosen_ways("mlfq,gittins:2 mean,gittins")]
    assert names == ["sarathi", "sarathi+swap", "mlfq", "gittins:2 mean", "gittins"]
    with pytest.raises(ValueError, match="no policy fifo"):
        chosen_ways("gittins,fifo")


def test_a_sweep_is_of_pauses_with_one_predictor_and_of_predictors_with_one_pause() -> None:
    ways = [WAYS[name] for name in swept().split(",")]
    gittins = [way for way in ways if way.policy in ("gittins", Unpaced.name)]
    assert {way.predictor for way in gittins if ":" in way.name.partition(" ")[0]} == {"mean"}
    assert len({way.predictor for way in gittins if way.name.startswith("gittins ")}) == 5
    assert len(gittins) == len({way.name for way in gittins}) == 11


def test_every_way_can_be_simulated_in_every_cell_that_has_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(POLICIES, Unpaced.name, Unpaced)
    few = {"requests": 1, "arrivals": "poisson", "rate": 1.0}
    for way in (*BASELINES, *WAYS.values()):
        prepare(setting("skew", way, 0, None, **few))
    for name in set(WORKLOADS) - {MOONCAKE}:
        prepared = prepare(setting(name, BASELINES[0], 0, None, **few))
        four = name.endswith("-70b")
        assert (len(prepared.profiles), prepared.max_len) == ((4, 4096) if four else (1, 2048))


def test_every_workload_has_its_capacity() -> None:
    kept = capacities()
    assert set(kept) == set(WORKLOADS) == {cell.partition("/")[0] for cell in CELLS}
    assert all(rate > 0 for rate in kept.values())


def test_draws_are_stretched_to_the_rate_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def recorded(prepared: Prepared) -> RunLog:
        seen.append(prepared.workload.arrival_s[-1])
        return run(prepared)

    monkeypatch.setattr(runs, "run", recorded)
    done = one_run(Job("skew/gamma:4", 4.0, 20, BASELINES[1], 5), None)
    assert seen == [pytest.approx(20 / 4.0)]
    assert abs(done.drawn - 1.0) > 0.01  # it came otherwise


@pytest.mark.parametrize(("gap_s", "misses"), [(4.9, False), (5.1, True)])
def test_a_gap_of_five_seconds_is_never_a_miss(gap_s: float, misses: bool) -> None:
    assert GAP.misses(gap_s, base=0.1) is misses
    assert not GAP.misses(gap_s, base=3.5)


def test_a_policy_is_held_to_the_better_baseline_of_each_measure(done: CellFigures) -> None:
    missed = {way.name: done.misses(way) for way in done.others if done.misses(way)}
    assert missed == {"mlfq": [GAP], "speculative": [LATENCY]}
    rows = list(table(done))
    assert [row.count("!") for row in rows[1:]] == [1, 1, 1, 1, 0, 0, 0]
    assert "  mlfq: misses P99 gap" in shown(done)


def test_the_document_has_misses_in_bold_and_counts_them(done: CellFigures) -> None:
    other = msgspec.structs.replace(done, load=0.7, ways=[*done.ways[:2], done.ways[3]])
    rows = list(markdown(Results([5, 6], 10.0, [done, other])))
    assert rows[2].startswith("| skew/gamma:4 | 0.9 | mlfq | 1.02 |")
    assert "| **13.0 s (1.62)** |" in rows[2]
    assert "| speculative | 0 of 2 | 2 | 0 | 0 | 0 | 0 | 0 |" in rows
    assert "| gittins mean | 1 of 1 | 0 | 0 | 0 | 0 | 0 | 0 |" in rows


def test_the_line_goes_by_pause_and_the_rest_are_points(done: CellFigures, tmp_path: Path) -> None:
    assert [one.text for one in line_of(done)] == ["4 s", "8 s"]
    names = [one.text for one in points_of(done)]
    assert names == ["sarathi", "sarathi+swap", "mlfq", "speculative", "gittins oracle"]
    plot(Results([5], 10.0, [done]), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("<svg") == 1
