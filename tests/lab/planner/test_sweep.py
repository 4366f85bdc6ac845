"""A sweep gives what single runs give, in a fixed order, whatever fails."""

from pathlib import Path

import msgspec
import pytest

from daemon.lab.planner.capacity import find_capacity
from daemon.lab.planner.goal import Goal
from daemon.lab.planner.sweep import Key, grid, sweep, table
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from tests.lab.planner.small import scenario


def _timeless(report: Report | None) -> Report:
    assert report is not None
    return msgspec.structs.replace(report, wall_s=0.0)


def test_four_points_are_four_single_runs_and_a_bad_one_a_row(tmp_path: Path) -> None:
    one = scenario(tmp_path, 60, output=4)
    points = grid(one, rates=(0.5, 1.0), policies=("vllm", "srtf"))
    bad = Key("none", "vllm", 1.0)
    points[bad] = grid(one, rates=(1.0,), profiles=("none",))[bad]

    rows = table(points, sweep(points, workers=2))

    assert [row.key for row in rows] == list(points)
    assert rows[-1].report is None
    assert rows[-1].error.startswith("unknown profile 'none'")
    for row in rows[:-1]:
        single = prepare(points[row.key])
        assert _timeless(row.report) == _timeless(report_of(single, run(single)))
        assert row.error == ""


def test_a_goal_makes_each_point_a_search(tmp_path: Path) -> None:
    one = scenario(tmp_path, 60)
    points = grid(one)
    rows = list(sweep(points, workers=1, goal=Goal()))
    assert [row.key.policy for row in rows] == ["vllm"]
    assert _timeless(rows[0].report) == _timeless(find_capacity(one, Goal()).as_report())


def test_the_grid_keeps_what_it_is_not_given(tmp_path: Path) -> None:
    one = scenario(tmp_path, 10)
    own = one.instance[0].profile
    assert grid(one) == {Key(own, "vllm", 0.5): one}
    points = grid(one, rates=(1.0, 2.0), policies=("sarathi",), profiles=("x", "y"))
    assert [key.rate_rps for key in points] == [1.0, 2.0, 1.0, 2.0]
    last = points[Key("y", "sarathi", 2.0)]
    assert (last.policy, last.workload.rate) == ("sarathi", 2.0)
    assert (last.instance[0].profile, last.instance[0].kv_bytes) == ("y", 1e7)


@pytest.mark.parametrize(
    ("first", "text"), [(1, "2 x constant@a100-80g"), (0, "constant@a100-80g")]
)
def test_the_report_counts_instances(tmp_path: Path, first: int, text: str) -> None:
    one = scenario(tmp_path, 5)
    group = msgspec.structs.replace(one.instance[0], count=1 + first)
    single = prepare(msgspec.structs.replace(one, instance=(group,)))
    report = report_of(single, run(single))
    assert (report.profile, report.kind, report.finished) == (text, "simulated", 5)
    assert report.predictor == "none"
