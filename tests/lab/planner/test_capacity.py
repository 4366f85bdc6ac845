"""Capacity against queueing theory, the stability rule, and what is refused."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon.lab.planner.capacity import find_capacity
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.goal import Goal
from daemon.lab.report.summarize import Promise
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import Scenario
from daemon.lab.workload.workload import SloClass
from tests.lab.planner.small import SERVICE_S, at_rate, scenario

WIDTH = 0.02


def test_equal_gaps_are_sustained_up_to_the_service_rate(tmp_path: Path) -> None:
    """D/D/1: at rate r a share 1 - 1 / (r D) waits at the last arrival, and 2 % may."""
    found = find_capacity(scenario(tmp_path, 1000, arrivals="uniform"), Goal())
    most = 1 / SERVICE_S / (1 - 0.02)
    assert most * 0.997 / (1 + WIDTH) < found.rps < most * 1.001
    assert found.failed_rps <= found.rps * (1 + WIDTH)
    assert found.limited_by == "unserved_fraction"
    assert (found.requests, found.warm_up_requests) == (1000, 100)


@pytest.mark.soak
def test_poisson_arrivals_against_the_mean_wait_of_m_d_1(tmp_path: Path) -> None:
    """Mean time in system D + rho D / (2 (1 - rho)) = 2 D at rho = 2/3."""
    one = scenario(tmp_path, 2000)
    found = find_capacity(one, Goal(normalized_latency_s=2 * SERVICE_S), relative_width=0.01)
    assert found.rps * SERVICE_S == pytest.approx(2 / 3, rel=0.04)
    assert found.limited_by == "normalized_latency_s"
    assert found.report.rate_rps == found.rps


def test_every_trial_measures_the_queue_of_its_arrivals(tmp_path: Path) -> None:
    """One server with constant service: each starts when it is there and the last one is done."""
    one = scenario(tmp_path, 200)
    found = find_capacity(one, Goal(p99_queueing_s=2.0))
    assert found.limited_by == "p99_queueing_s"
    for trial in found.trials:
        arrival_s = prepare(at_rate(one, trial.rate_rps)).workload.arrival_s
        end_s = np.empty(200)
        free_s = 0.0
        for index, at_s in enumerate(arrival_s.tolist()):
            end_s[index] = free_s = max(at_s, free_s) + SERVICE_S
        wait_s = end_s - SERVICE_S - arrival_s
        assert trial.p99_queueing_s == pytest.approx(np.percentile(wait_s[20:], 99), abs=1e-6)
        assert trial.normalized_latency_s == pytest.approx((wait_s[20:] + SERVICE_S).mean())
        assert trial.unserved_tokens_fraction == (end_s > arrival_s[-1]).mean()
        assert trial.sustained == (trial.p99_queueing_s <= 2.0 and not trial.failed)


def test_the_bracket_is_found_from_above_too(tmp_path: Path) -> None:
    one = scenario(tmp_path, 300, arrivals="uniform")
    below, above = (
        find_capacity(at_rate(one, 0.3), Goal()),
        find_capacity(at_rate(one, 9.0), Goal()),
    )
    assert above.rps == pytest.approx(below.rps, rel=2 * WIDTH)
    passed = [t.rate_rps for t in above.trials if t.sustained]
    failed = [t.rate_rps for t in above.trials if not t.sustained]
    assert max(passed) == above.rps < above.failed_rps == min(failed)


def test_a_short_stride_near_the_answer_tries_fewer_rates(tmp_path: Path) -> None:
    one = scenario(tmp_path, 300, arrivals="uniform")
    wide = find_capacity(one, Goal())
    for near in (0.95 * wide.rps, 1.05 * wide.rps):
        found = find_capacity(at_rate(one, near), Goal(), stride=1.1)
        assert found.rps == pytest.approx(wide.rps, rel=2 * WIDTH)
        assert found.failed_rps <= found.rps * (1 + WIDTH) < 1.1 * found.rps
        assert len(found.trials) < len(wide.trials)


def test_a_goal_that_an_idle_machine_misses_has_no_capacity(tmp_path: Path) -> None:
    found = find_capacity(scenario(tmp_path, 200), Goal(ttft_s=SERVICE_S / 2))
    assert found.rps == 0.0
    assert found.limited_by == "attainment"
    assert len(found.trials) < 24
    assert not any(trial.sustained for trial in found.trials)


def test_stability_bites_where_latencies_would_not(tmp_path: Path) -> None:
    """Three quarters of the answers are short: with those alone first, 70 % keep a promise at
    almost 8/3 requests/s, while the long ones, of 3.45 s, pile up from 0.8 requests/s on.
    """
    one = at_rate(scenario(tmp_path, 200, policy="srtf"), 1.0)
    rows = ["16,1" if row % 4 else "16,60" for row in range(200)]
    trace = tmp_path / "lengths.csv"
    trace.write_text("\n".join(["num_prefill_tokens,num_decode_tokens", *rows]) + "\n")
    one = msgspec.structs.replace(one, predictor="oracle")
    promised = Goal(ttft_s=10.0, attainment=0.7)
    unbounded = msgspec.structs.replace(promised, unserved_fraction=1.0)
    loose = find_capacity(one, unbounded, relative_width=0.1)
    strict = find_capacity(one, promised, relative_width=0.1)
    assert loose.rps > 2.0
    assert strict.rps < 0.9
    assert strict.limited_by == "unserved_fraction"


def test_the_lengths_and_draws_are_those_of_every_other_rate(tmp_path: Path) -> None:
    one = scenario(tmp_path, 50, arrivals="gamma:3")
    slow, fast = prepare(at_rate(one, 1.0)).workload, prepare(at_rate(one, 4.0)).workload
    np.testing.assert_allclose(slow.arrival_s, 4 * fast.arrival_s)
    np.testing.assert_array_equal(slow.output_tokens, fast.output_tokens)


def test_the_report_at_capacity_says_how_it_was_found(tmp_path: Path) -> None:
    one = scenario(tmp_path, 200)
    goal = Goal(ttft_s=1.5, tpot_s=1.0, p99_queueing_s=5.0)
    found = find_capacity(one, goal)
    report = found.as_report()
    single = prepare(at_rate(one, found.rps))
    expected = report_of(single, run(single))
    assert report.capacity_rps == found.rps
    assert report.ttft_s == expected.ttft_s
    assert report.capacity is not None
    assert report.capacity["condition"] == (
        "P99 queueing <= 5 s; TTFT <= 1.5 s and TPOT <= 1 s for 90 % of requests; "
        "at the last arrival at most 2 % of the asked output tokens unserved"
    )
    assert len(report.capacity["rates_tried"]) == len(found.trials)
    assert msgspec.json.decode(msgspec.json.encode(report))["capacity"]["requests"] == 200


def with_classes(one: Scenario, *classes: SloClass) -> Scenario:
    spec = msgspec.structs.replace(one.workload, classes=classes)
    return msgspec.structs.replace(one, workload=spec)


def test_promises_of_classes_bound_a_rate_like_the_goals_own(tmp_path: Path) -> None:
    one = scenario(tmp_path, 300)
    own = find_capacity(one, Goal(ttft_s=1.2, attainment=0.8))
    promised = find_capacity(with_classes(one, SloClass(ttft_s=1.2)), Goal(attainment=0.8))
    assert (promised.trials, promised.condition) == (own.trials, own.condition)
    free = find_capacity(one, Goal())
    assert own.rps < 0.95 * free.rps and own.limited_by == "attainment"
    assert all(trial.attainment is None for trial in free.trials)


def test_each_class_with_promises_must_keep_its_own(tmp_path: Path) -> None:
    """A tenth of the requests is promised what nobody gets: the others do not make up for it."""
    classes = (SloClass("many", 0.9, ttft_s=60.0), SloClass("few", 0.1, ttft_s=SERVICE_S / 2))
    found = find_capacity(with_classes(scenario(tmp_path, 200), *classes), Goal(attainment=0.5))
    assert found.rps == 0.0 and found.limited_by == "attainment"
    assert {trial.attainment for trial in found.trials} == {0.0}
    assert found.condition.startswith("TTFT <= 60 s for 50 % of many; TTFT <= 0.25 s for 50 % of f")
    free = (SloClass("many", 0.9, ttft_s=60.0), SloClass("few", 0.1))
    loose = find_capacity(with_classes(scenario(tmp_path, 200), *free), Goal(attainment=0.5))
    assert loose.rps > 1.0 and "few" not in loose.condition


def test_a_bound_of_the_goal_takes_the_place_of_its_like() -> None:
    classes = (Promise("a", 1.0, normalized_latency_s=0.5), Promise("b", 0.0, 0.2))
    assert Goal().promises(classes) == classes
    bound = Goal(gap_s=0.7).promises((Promise("a", gap_s=5.0),))
    assert bound == (Promise("a", gap_s=0.7),)
    assert Goal().words(bound).startswith("longest gap <= 0.7 s for 90 % of requests; ")
    assert Goal(ttft_s=3.0).promises(classes) == (
        Promise("a", 3.0, normalized_latency_s=0.5),
        Promise("b", 3.0, 0.2),
    )
    assert Goal(normalized_latency_s=1.0).promises(classes)[0] == Promise("a", 1.0)


def test_progress_hears_every_rate(tmp_path: Path) -> None:
    heard: list[float] = []
    one = scenario(tmp_path, 100)
    found = find_capacity(one, Goal(), progress=lambda trial: heard.append(trial.rate_rps))
    assert heard == [trial.rate_rps for trial in found.trials]


def test_what_has_no_capacity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="closed arrivals have no rate"):
        find_capacity(scenario(tmp_path, 10, arrivals="closed"), Goal())
    with pytest.raises(
        PlannerError, match=r"20 requests are too few: the last one alone asks 5\.0 %"
    ):
        find_capacity(scenario(tmp_path, 20), Goal())
    with pytest.raises(PlannerError, match="the width must be in"):
        find_capacity(scenario(tmp_path, 100), Goal(), relative_width=0.0)
    with pytest.raises(PlannerError, match="the stride must be above 1"):
        find_capacity(scenario(tmp_path, 100), Goal(), stride=1.0)
    with pytest.raises(PlannerError, match="ttft_s must be 0 or more"):
        Goal(ttft_s=-1.0)
    with pytest.raises(PlannerError, match="attainment is a share"):
        Goal(attainment=90.0)
