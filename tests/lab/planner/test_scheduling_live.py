"""`benchmarks.scheduling_live`: its arrivals come at the rate that is asked, and its table."""

import math

import msgspec
import pytest

from benchmarks.scheduling import Way, scenario
from benchmarks.scheduling_live import BASE, MAX_LEN, USUAL, WAYS, arriving, table
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import WorkloadSpec


@pytest.fixture(scope="module")
def report() -> Report:
    """Of a few requests."""
    spec = WorkloadSpec(name="alpaca", requests=8, rate=4.0)
    prepared = prepare(scenario(Way("sarathi"), spec, 12e9, 0))
    return report_of(prepared, run(prepared))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_draw_comes_at_the_rate_that_is_asked(seed: int) -> None:
    spec = arriving(50, 2.0, seed)
    assert build(spec, MAX_LEN).arrival_s[-1] == pytest.approx(25.0)
    assert not math.isclose(spec.rate, 2.0)


def test_a_way_is_compared_with_sarathi_round_by_round(report: Report) -> None:
    assert set(USUAL.split(",")) <= set(WAYS)
    longer = msgspec.structs.replace(report.jct_s, mean=2.0)
    longest = msgspec.structs.replace(report.jct_s, mean=4.0)
    rounds = [msgspec.structs.replace(report, jct_s=one) for one in (longer, longest)]
    twice = [msgspec.structs.replace(report, jct_s=longest) for _ in rounds]
    header, base, way, ratios = table({BASE.name: rounds, "gittins": twice})
    assert "3 (2-4)" in base and "4 (4-4)" in way and header.split()[-1] == "failed"
    assert ratios.split("1 (1-1)")[1].strip() == "1.5 (1-2)"
