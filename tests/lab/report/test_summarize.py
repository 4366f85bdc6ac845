"""Every measure of a report, against numbers computed by hand."""

import msgspec
import numpy as np
import pytest

from daemon.lab.report.errors import ReportError
from daemon.lab.report.records import InstanceLog, RequestLog, RunLog
from daemon.lab.report.report import Report, Stats
from daemon.lab.report.summarize import About, Promise, stats, summarize
from tests.lab.report.logs import by_hand

ABOUT = About(
    kind="simulated",
    label="by hand",
    policy="vllm",
    profile="none",
    seed=7,
    dropped=2,
    rate_rps=1.5,
    classes=(
        Promise("chat", ttft_s=1.0, tpot_s=0.75),
        Promise("batch", normalized_latency_s=1.6),
    ),
    predictor="oracle, exact",
)


@pytest.fixture(scope="module")
def report() -> Report:
    return summarize(by_hand(), ABOUT)


def approx(*values: float) -> Stats:
    return pytest.approx(values)  # type: ignore[no-any-return]


def test_what_the_log_does_not_know_is_taken_over(report: Report) -> None:
    assert (report.kind, report.label, report.policy) == ("simulated", "by hand", "vllm")
    assert (report.profile, report.seed, report.dropped) == ("none", 7, 2)
    assert (report.rate_rps, report.predictor) == (1.5, "oracle, exact")
    assert (report.virtual_s, report.wall_s) == (8.0, 0.5)


def test_requests_are_counted_by_how_they_ended(report: Report) -> None:
    assert (report.requests, report.finished, report.rejected, report.failed) == (5, 3, 1, 0)


def test_rates_are_over_the_whole_run(report: Report) -> None:
    assert report.throughput_rps == 3 / 8
    assert report.output_tokens_per_s == 9 / 8


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("ttft_s", (1.75, 1, 3.1, 3.55, 3.91, 4)),  # 1, 1, 1, 4
        ("tpot_s", (4 / 3, 4 / 3, 28 / 15, 29 / 15, 2 - 1 / 75, 2)),  # 2/3, 2
        ("tbt_s", (1.2, 1, 2, 2, 2, 2)),  # 0.5, 0.5, 1, 2, 2
        ("jct_s", (3, 3, 4.6, 4.8, 4.96, 5)),  # 1, 3, 5
        ("normalized_latency_s", (41 / 36, 1, 23 / 15, 1.6, 5 / 3 - 1 / 75, 5 / 3)),  # 3/4, 1, 5/3
        ("queueing_s", (0.75, 0.5, 1.55, 1.775, 1.955, 2)),  # 0, 0.5, 0.5, 2
        ("swap_s", (0.125, 0, 0.35, 0.425, 0.485, 0.5)),  # 0, 0, 0, 0.5
        ("transfer_s", (0.0625, 0, 0.175, 0.2125, 0.2425, 0.25)),  # 0, 0, 0, 0.25
        ("second_token_s", (1.25, 1.25, 1.85, 1.925, 1.985, 2)),  # 0.5, 2
        ("longest_gap_s", (1.5, 1.5, 1.9, 1.95, 1.99, 2)),  # 1, 2
        ("paused_s", (0.375, 0, 1.05, 1.275, 1.455, 1.5)),  # 0, 0, 0, 1.5
    ],
)
def test_latencies(report: Report, field: str, expected: tuple[float, ...]) -> None:
    assert msgspec.structs.astuple(getattr(report, field)) == pytest.approx(expected)


def test_promises_are_met_all_at_once_or_not_at_all(report: Report) -> None:
    # 0 and 1 meet chat's (an answer of one token cannot miss a TPOT); 2 takes 1.67 s a token; the
    # rejected and the unfinished one count as missed.
    assert report.slo_attainment == 2 / 5
    assert report.goodput_rps == 2 / 8
    assert report.slo_by_class == {"chat": pytest.approx(2 / 3), "batch": 0.0}


@pytest.mark.parametrize(
    ("promise", "met"),
    [
        (Promise(ttft_s=1.0), 3),
        (Promise(ttft_s=0.999), 0),
        (Promise(tpot_s=0.7), 2),
        (Promise(gap_s=2.0), 3),
        (Promise(gap_s=1.0), 2),
        (Promise(gap_s=0.999), 1),
        (Promise(normalized_latency_s=1.0), 2),
        (Promise(normalized_latency_s=0.8), 1),
        (Promise(ttft_s=1.0, tpot_s=0.7, normalized_latency_s=0.8), 1),
        (Promise(scale=2.0), 2),
        (Promise(scale=3.0), 3),
    ],
)
def test_each_promise_counts(promise: Promise, met: int) -> None:
    run = by_hand()
    run.requests.slo_class[:] = 0
    run.requests.alone_s[:] = 2.0  # of 1, 3 and 5 s
    found = summarize(run, msgspec.structs.replace(ABOUT, classes=(promise,)))
    assert found.slo_attainment == met / 5


@pytest.mark.parametrize("classes", [(), (Promise("a"), Promise("b"))])
def test_without_a_promise_there_is_no_attainment(classes: tuple[Promise, ...]) -> None:
    found = summarize(by_hand(), msgspec.structs.replace(ABOUT, classes=classes))
    assert found.slo_attainment is None and found.goodput_rps is None
    assert found.slo_by_class == {}


def test_a_class_without_promises_needs_only_to_finish() -> None:
    classes = (Promise("chat"), Promise("batch", ttft_s=0.5))
    found = summarize(by_hand(), msgspec.structs.replace(ABOUT, classes=classes))
    assert found.slo_by_class == {"chat": pytest.approx(2 / 3), "batch": 0.0}


@pytest.mark.parametrize(
    ("classes", "fault"),
    [
        ((Promise(ttft_s=1),), "a request is of class 1, but there are 1"),
        ((Promise("x"), Promise("x")), "two SLO classes have the same name"),
    ],
)
def test_classes_that_do_not_fit(classes: tuple[Promise, ...], fault: str) -> None:
    with pytest.raises(ReportError, match=fault):
        summarize(by_hand(), msgspec.structs.replace(ABOUT, classes=classes))


def test_preemptions_swaps_and_recomputing(report: Report) -> None:
    assert (report.preemptions, report.recomputed_tokens, report.swaps) == (3, 56, 3)
    assert report.preempted_requests_fraction == 1 / 5


def test_unserved_tokens(report: Report) -> None:
    # At 4 s, the last arrival, 4 + 1 + 1 + 0 + 0 of 4 + 1 + 3 + 2 + 6 tokens were out.
    assert report.unserved_tokens_fraction == 10 / 16


def test_kv_memory_between_10_and_90_percent_of_completions(report: Report) -> None:
    # Completions at 2, 3 and 7 s: from 2.2 to 6.2 s. Instance a holds 1.8 s of 0.5, 2 s of 1 and
    # 0.2 s of 0.25; b nothing until 4 s, then 0.5. Of what a holds, half is written.
    a, b = (1.8 * 0.5 + 2.0 + 0.2 * 0.25) / 4, 2.2 * 0.5 / 4
    assert report.kv_allocated_fraction == pytest.approx((a + b) / 2)
    assert report.kv_written_fraction == pytest.approx((a / 2 + b) / 2)


def test_steps_and_operations(report: Report) -> None:
    assert (report.iterations, report.mean_step_tokens) == (6, 20)
    assert report.mfu == 5e12 / (4e12 * 8)


def test_energy(report: Report) -> None:
    assert (report.energy_j, report.mean_power_w) == (1600, 200)
    assert report.energy_per_token_j == pytest.approx(1600 / 9)


def test_instances(report: Report) -> None:
    a, b = report.instances
    assert (a.name, a.devices, a.steps, a.busy_fraction) == ("a", 2, 4, 0.75)
    assert (a.mean_step_tokens, a.mean_running, a.mfu) == (20, 1.0, 0.25)
    assert (a.mean_power_w, a.energy_j) == (150, 1200)
    assert (b.busy_fraction, b.mean_running, b.mfu) == (0.25, 0.5, 0.0625)


def test_unknown_peaks_and_energies_stay_unknown() -> None:
    run = by_hand()
    run.instances[1].peak_flops = run.instances[1].energy_j = 0.0
    found = summarize(run, ABOUT)
    assert found.mfu is None
    assert found.energy_j is None and found.mean_power_w is None
    assert found.energy_per_token_j is None
    assert found.instances[0].mfu == 0.25 and found.instances[1].mfu is None
    assert found.instances[0].energy_j == 1200 and found.instances[1].energy_j is None


def test_a_run_seen_from_outside_has_no_instances() -> None:
    run = by_hand()
    run.instances = []
    found = summarize(run, ABOUT)
    assert found.kv_allocated_fraction is None and found.kv_written_fraction is None
    assert found.mean_step_tokens is None and found.mfu is None and found.energy_j is None
    assert (found.iterations, found.instances) == (None, [])
    assert (found.preemptions, found.preempted_requests_fraction) == (None, None)
    assert (found.recomputed_tokens, found.swaps) == (None, None)


def test_an_idle_instance_counts_as_empty() -> None:
    run = by_hand()
    run.instances.append(InstanceLog("idle"))
    found = summarize(run, ABOUT)
    before = summarize(by_hand(), ABOUT).kv_allocated_fraction
    assert before is not None
    assert found.kv_allocated_fraction == pytest.approx(before * 2 / 3)
    assert found.energy_j == 1600


def test_an_empty_run() -> None:
    run = RunLog(RequestLog.empty(0), [], [], virtual_s=0.0, wall_s=0.0)
    found = summarize(run, msgspec.structs.replace(ABOUT, rate_rps=float("inf")))
    assert (found.requests, found.throughput_rps, found.unserved_tokens_fraction) == (0, 0, 0)
    assert found.ttft_s == Stats(None, None, None, None, None)
    assert found.slo_attainment == 0 and found.slo_by_class == {}
    assert found.rate_rps is None


def test_stats_leave_out_what_never_came() -> None:
    assert stats([np.nan, 1.0, np.nan, 3.0]).mean == 2.0
