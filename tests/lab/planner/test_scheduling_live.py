"""`benchmarks.scheduling_live`: its arrivals come at the rate that is asked, and its tables."""

import math

import msgspec
import pytest

from benchmarks.scheduling_live import (
    BASE,
    MAX_LEN,
    MEASURES,
    MEMORY,
    USUAL,
    WAYS,
    arriving,
    chosen_ways,
    ratio,
    table,
    with_memory,
)
from benchmarks.studies.scheduling import Way, scenario
from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import WorkloadSpec


@pytest.fixture(scope="module")
def simulated() -> tuple[Report, RunLog]:
    """Of a few requests."""
    spec = WorkloadSpec(name="alpaca", requests=8, rate=4.0)
    prepared = prepare(scenario(Way("sarathi"), spec, 12e9, 0))
    log = run(prepared)
    return report_of(prepared, log), log


@pytest.mark.parametrize("seed", [0, 1])
def test_a_draw_comes_at_the_rate_that_is_asked(seed: int) -> None:
    spec = arriving(50, 2.0, seed)
    assert build(spec, MAX_LEN).arrival_s[-1] == pytest.approx(25.0)
    assert not math.isclose(spec.rate, 2.0)


def test_a_way_is_compared_with_sarathi_round_by_round(simulated: tuple[Report, RunLog]) -> None:
    report, _ = simulated
    longer = msgspec.structs.replace(report.jct_s, mean=2.0)
    longest = msgspec.structs.replace(report.jct_s, mean=4.0)
    kept = msgspec.structs.replace(report, slo_attainment=0.5)
    rounds = [msgspec.structs.replace(kept, jct_s=one) for one in (longer, longest)]
    twice = [msgspec.structs.replace(kept, jct_s=longest) for _ in rounds]
    lines = list(table({BASE.name: rounds, "gittins": twice}))
    header, base, way, ratios, memory, *of_memory = lines
    assert "3 (2-4)" in base and "4 (4-4)" in way and header.split()[-1] == "failed"
    end = header.index(" JCT") + len(" JCT")
    assert ratios[:end].endswith(" 1.5 (1-2)") and ratios.count("1 (1-1)") == len(MEASURES) - 1
    assert memory.split() == ["memory", *MEMORY] and len(of_memory) == 2


def test_nothing_to_compare_with_has_no_ratio(simulated: tuple[Report, RunLog]) -> None:
    report, _ = simulated
    none_kept = msgspec.structs.replace(report, slo_attainment=0.0)
    kept = msgspec.structs.replace(report, slo_attainment=0.5)
    assert math.isnan(ratio(kept, none_kept, "slo_attainment"))
    assert math.isnan(ratio(kept, report, "slo_attainment"))
    assert ratio(none_kept, kept, "slo_attainment") == 0.0


def test_what_clients_do_not_see_comes_from_the_log(simulated: tuple[Report, RunLog]) -> None:
    report, log = simulated
    seen = msgspec.structs.replace(report, **dict.fromkeys(MEMORY.values()))
    assert with_memory(seen, log) == report and report.kv_written_fraction


def test_groups_stand_for_their_ways() -> None:
    assert set(chosen_ways(USUAL)) == set(USUAL.split(","))
    lending = chosen_ways("lending,vllm")
    assert {"sarathi", "sarathi+swap", "gittins noisy:0+reserve_peak", "vllm"} < set(lending)
    with pytest.raises(ValueError, match="no such ways: fifo"):
        chosen_ways("lending,fifo")
    assert set(lending) < set(WAYS)
