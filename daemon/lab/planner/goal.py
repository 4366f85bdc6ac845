"""A goal that a rate must meet to count as sustained, and the verdict on one run."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import pairwise

import msgspec

from daemon.lab.planner.errors import PlannerError
from daemon.lab.report.records import RequestLog, RunLog
from daemon.lab.report.report import Report
from daemon.lab.report.summarize import Promise, summarize
from daemon.lab.simulator.about import about_of
from daemon.lab.simulator.run import Prepared

_GAPS = ("gap_s", "gap_request")


def without_first(requests: RequestLog, count: int) -> RequestLog:
    """The rows of all but the first `count` requests, [N - count], and their gaps alone."""
    return rows_between(requests, count, len(requests))


def rows_between(requests: RequestLog, first: int, end: int) -> RequestLog:
    """The rows of the requests from `first` to `end`, [end - first], and their gaps alone."""
    kept = (requests.gap_request >= first) & (requests.gap_request < end)
    columns = {
        each.name: getattr(requests, each.name)[first:end]
        for each in fields(RequestLog)
        if each.name not in _GAPS
    }
    return RequestLog(
        **columns,
        gap_s=requests.gap_s[kept],
        gap_request=requests.gap_request[kept] - first,
    )


def warmed_up(run: RunLog, count: int) -> RunLog:
    """The run's requests after the first `count`; without instances, whose logs span both."""
    rest = without_first(run.requests, count)
    return RunLog(rest, [], [], virtual_s=run.virtual_s, wall_s=run.wall_s)


class Goal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every bound that is not 0 must hold over the requests after the warm-up.

    The workload's promises to its classes must hold too, for a share of `attainment` of each class.
    A bound here replaces the classes' promises of the same measure.

    Stability is always required: at the last arrival at most `unserved_fraction` of all requests'
    output tokens may be missing. Latencies alone do not show it: a finite trace ends, so a policy
    that parks the work it dislikes until then serves the rest quickly at any rate. Rejected and
    failed requests count as unserved, and miss their promises.

    Answers that still run at the last arrival count as unserved too, about half of each: with few
    requests (fewer than some 25 times those that run together) that alone passes 2 %, and the
    answer is the rate for this N, below the machine's own.
    """

    normalized_latency_s: float = 0.0  # the mean, at most
    p99_normalized_latency_s: float = 0.0
    ttft_s: float = 0.0  # promised to each request of every class
    tpot_s: float = 0.0  # likewise
    gap_s: float = 0.0  # likewise, of its longest gap
    attainment: float = 0.9  # share of a class's requests for which all its promises hold
    p99_queueing_s: float = 0.0  # Vidur section 6: 5 s
    unserved_fraction: float = 0.02

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise PlannerError(f"goal: {name} must be 0 or more, got {getattr(self, name)}")
        for name in ("attainment", "unserved_fraction"):
            if getattr(self, name) > 1.0:
                raise PlannerError(f"goal: {name} is a share, at most 1, got {getattr(self, name)}")

    def promises(self, classes: Iterable[Promise]) -> tuple[Promise, ...]:
        """The promises to judge for each class: its own, or the goal's in their place."""
        return tuple(
            Promise(
                name=promise.name,
                ttft_s=self.ttft_s or promise.ttft_s,
                tpot_s=self.tpot_s or promise.tpot_s,
                gap_s=self.gap_s or promise.gap_s,
                normalized_latency_s=(
                    0.0 if self.normalized_latency_s else promise.normalized_latency_s
                ),
                scale=promise.scale,
            )
            for promise in classes
        )

    def words(self, classes: Sequence[Promise]) -> str:
        """The condition as a sentence for reports, with the bounds of each class."""
        parts = [
            f"{name} <= {bound:g} s"
            for name, bound in (
                ("mean normalized latency", self.normalized_latency_s),
                ("P99 normalized latency", self.p99_normalized_latency_s),
                ("P99 queueing", self.p99_queueing_s),
            )
            if bound
        ]
        parts += [
            f"{' and '.join(bounds)} for {100 * self.attainment:g} % of "
            f"{promise.name if len(classes) > 1 else 'requests'}"
            for promise in classes
            if (bounds := _bounds(promise))
        ]
        parts.append(
            f"at the last arrival at most {100 * self.unserved_fraction:g} % of the asked output "
            "tokens unserved"
        )
        return "; ".join(parts)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One rate that was tried; measures after the warm-up, but `unserved` of the whole run."""

    rate_rps: float
    sustained: bool
    failed: tuple[str, ...]  # the bounds that did not hold, by the goal's names
    unserved_tokens_fraction: float
    normalized_latency_s: float | None  # mean
    p99_normalized_latency_s: float | None
    p99_queueing_s: float | None
    attainment: float | None  # of the worst class; None: nothing promised


def judge(prepared: Prepared, run: RunLog, whole: Report, goal: Goal, warm_up: int) -> Trial:
    """The verdict on a run at its scenario's rate; `whole` is the run's report."""
    about = about_of(prepared)
    promises = goal.promises(about.classes)
    measured = summarize(warmed_up(run, warm_up), msgspec.structs.replace(about, classes=promises))
    promised = [promise.name for promise in promises if _bounds(promise)]
    kept = [share for name, share in measured.slo_by_class.items() if name in promised]
    attainment = min(kept, default=None)
    limits: tuple[tuple[str, float | None, float], ...] = (
        ("normalized_latency_s", measured.normalized_latency_s.mean, goal.normalized_latency_s),
        (
            "p99_normalized_latency_s",
            measured.normalized_latency_s.p99,
            goal.p99_normalized_latency_s,
        ),
        ("p99_queueing_s", measured.queueing_s.p99, goal.p99_queueing_s),
    )
    failed = [name for name, value, most in limits if most and (value is None or value > most)]
    if attainment is not None and attainment < goal.attainment:
        failed.append("attainment")
    if whole.unserved_tokens_fraction > goal.unserved_fraction:
        failed.append("unserved_fraction")
    return Trial(
        rate_rps=prepared.scenario.workload.rate,
        sustained=not failed,
        failed=tuple(failed),
        unserved_tokens_fraction=whole.unserved_tokens_fraction,
        normalized_latency_s=limits[0][1],
        p99_normalized_latency_s=limits[1][1],
        p99_queueing_s=limits[2][1],
        attainment=attainment,
    )


def attainments(
    prepared: Prepared, run: RunLog, goal: Goal, warm_up: int, parts: int
) -> tuple[float, ...]:
    """The attainment of the worst class in each of `parts` equal spans of a run's requests, of
    those after the first `warm_up`; 1 where nothing is promised.
    """
    about = about_of(prepared)
    promises = goal.promises(about.classes)
    promised = [promise.name for promise in promises if _bounds(promise)]
    about = msgspec.structs.replace(about, classes=promises)
    ends = [warm_up + (len(run.requests) - warm_up) * n // parts for n in range(parts + 1)]
    shares = []
    for first, end in pairwise(ends):
        rows = rows_between(run.requests, first, end)
        part = summarize(RunLog(rows, [], [], virtual_s=run.virtual_s, wall_s=run.wall_s), about)
        kept = [share for name, share in part.slo_by_class.items() if name in promised]
        shares.append(min(kept, default=1.0))
    return tuple(shares)


def _bounds(promise: Promise) -> list[str]:
    bounds = [
        f"{name} <= {bound:g} s"
        for name, bound in (
            ("TTFT", promise.ttft_s),
            ("TPOT", promise.tpot_s),
            ("longest gap", promise.gap_s),
            ("normalized latency", promise.normalized_latency_s),
        )
        if bound
    ]
    if promise.scale:
        bounds.append(f"JCT <= {promise.scale:g} times alone")
    return bounds


def check_length(prepared: Prepared, goal: Goal) -> None:
    """Refuse a workload that no rate could sustain: its last answer alone is too large a share.

    Nothing of the last request's answer exists when it arrives, however slow the arrivals. Raises
    PlannerError.
    """
    asked = prepared.workload.output_tokens
    share = float(asked[-1]) / float(asked.sum())
    if share > goal.unserved_fraction:
        raise PlannerError(
            f"capacity: {len(asked)} requests are too few: the last one alone asks "
            f"{100 * share:.1f} % of all output tokens, and at most "
            f"{100 * goal.unserved_fraction:g} % may be unserved when it arrives"
        )
