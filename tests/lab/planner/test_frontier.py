"""`benchmarks.frontier`: which cells and policies a text means, and what counts as a miss."""

import json

import msgspec
import pytest

from benchmarks.frontier import (
    BASELINES,
    CAPACITIES,
    CELLS,
    GAP,
    LATENCY,
    NAMES,
    WORKLOADS,
    Unpaced,
    chosen_cells,
    chosen_ways,
    missed,
    table,
)
from benchmarks.scheduling import Way, scenario
from daemon.lab.report.report import Report, Stats
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.workload.workload import WorkloadSpec
from daemon.scheduler.policies import POLICIES


@pytest.fixture(scope="module")
def report() -> Report:
    """Of a few requests."""
    spec = WorkloadSpec(name="alpaca", requests=8, rate=4.0)
    prepared = prepare(scenario(Way("sarathi"), spec, 12e9, 0))
    return report_of(prepared, run(prepared))


def _with(report: Report, gap_s: float, latency_s: float) -> Report:
    known = {"longest_gap_s": gap_s, "normalized_latency_s": latency_s}
    return msgspec.structs.replace(report, **{k: Stats(*[v] * 6) for k, v in known.items()})


def test_a_workloads_name_means_both_arrivals() -> None:
    assert chosen_cells("skew/gamma:4,code") == ["skew/gamma:4", "code/poisson", "code/gamma:4"]
    with pytest.raises(ValueError, match="no cell 'code/uniform'"):
        chosen_cells("code/uniform")


def test_only_policies_that_use_predictions_get_them_and_baselines_always_run() -> None:
    ways = chosen_ways("mlfq,gittins:2,gittins:inf", "none,mean")
    assert [way.name for way in ways] == [
        *("sarathi", "sarathi+swap", "mlfq"),
        *("gittins:2", "gittins:2 mean", "gittins:inf", "gittins:inf mean"),
    ]
    with pytest.raises(ValueError, match="no policy fifo"):
        chosen_ways("gittins,fifo", "none")


def test_every_policy_has_a_name_of_its_own_and_can_be_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(POLICIES, Unpaced.name, Unpaced)
    ways = chosen_ways(",".join(NAMES), "none")
    assert len({way.name for way in ways}) == len(ways) == len(NAMES)
    for way in ways:
        prepare(scenario(way, WorkloadSpec(name="skew", requests=1, rate=1.0), 12e9, 0))


def test_every_workload_has_its_capacity() -> None:
    kept = json.loads(CAPACITIES.read_text(encoding="utf-8"))
    assert set(kept) == set(WORKLOADS) == {cell.partition("/")[0] for cell in CELLS}
    assert all(rate > 0 for rate in kept.values())


@pytest.mark.parametrize(("gap_s", "misses"), [(4.9, False), (5.1, True)])
def test_a_gap_of_five_seconds_is_never_a_miss(gap_s: float, misses: bool) -> None:
    assert GAP.misses(gap_s, base=0.1) is misses
    assert not GAP.misses(gap_s, base=3.5)


def test_a_policy_is_held_to_the_better_baseline_of_each_measure(report: Report) -> None:
    recompute, swap = BASELINES
    found = {
        recompute: [_with(report, gap_s=8.0, latency_s=0.2)],
        swap: [_with(report, gap_s=20.0, latency_s=0.1)],
        Way("mlfq"): [_with(report, gap_s=13.0, latency_s=0.102)],
        Way("speculative"): [_with(report, gap_s=11.0, latency_s=0.104)],
    }
    assert missed(found) == {"mlfq": [GAP.title], "speculative": [LATENCY.title]}
    rows = list(table(found))
    assert len(rows) == 1 + len(found) and [row.count("!") for row in rows[1:]] == [1, 1, 1, 1]
