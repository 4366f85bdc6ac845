"""From a finished run to its report: every measure, vectorised."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.lab.report.errors import ReportError
from daemon.lab.report.measures import (
    Measures,
    completion_window,
    means_between,
    measure,
    tokens_delivered,
)
from daemon.lab.report.records import InstanceLog, Outcome, RequestLog, RunLog
from daemon.lab.report.report import (
    UNKNOWN,
    Decisions,
    InstanceReport,
    OperatorReport,
    Report,
    Stats,
)

PERCENTILES = (50, 90, 95, 99)


class Promise(msgspec.Struct, frozen=True):
    """The promises to one class of requests, in seconds except for `scale`. Zero: not promised."""

    name: str = "all"
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    gap_s: float = 0.0  # the longest
    normalized_latency_s: float = 0.0
    scale: float = 0.0  # times the whole answer's time alone


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a report that the run's log does not know."""

    kind: str  # "simulated" | "measured"
    label: str
    policy: str
    profile: str  # or the endpoint's URL
    seed: int = 0
    dropped: int = 0  # requests longer than the model's context
    rate_rps: float | None = None  # asked; None or infinite: all at once
    classes: tuple[Promise, ...] = ()  # by the log's `slo_class`
    predictor: str = ""  # with its declared error


def summarize(run: RunLog, about: About) -> Report:
    """The report of a run. Raises ReportError where the log has classes that `about` lacks."""
    requests = run.requests
    measures = measure(requests)
    attained = _attained(requests, measures, about.classes)
    kv = _kv_fractions(run)
    steps = sum(i.steps for i in run.instances)
    energy_j = _energy(run.instances)
    num_tokens = int(requests.output_tokens.sum())
    finished = requests.outcome == Outcome.FINISHED
    started = ~np.isnan(requests.started_s)
    rate = about.rate_rps
    inside = bool(run.instances)  # clients see no instances
    return Report(
        kind=about.kind,
        label=about.label,
        policy=about.policy,
        profile=about.profile,
        seed=about.seed,
        requests=len(requests),
        finished=int(finished.sum()),
        rejected=int((requests.outcome == Outcome.REJECTED).sum()),
        failed=int((requests.outcome == Outcome.FAILED).sum()),
        dropped=about.dropped,
        rate_rps=rate if rate is not None and np.isfinite(rate) else None,
        virtual_s=run.virtual_s,
        wall_s=run.wall_s,
        throughput_rps=_share(finished.sum(), run.virtual_s),
        output_tokens_per_s=_share(num_tokens, run.virtual_s),
        ttft_s=stats(measures.ttft_s),
        tpot_s=stats(measures.tpot_s),
        tbt_s=stats(requests.gap_s),
        jct_s=stats(measures.jct_s),
        normalized_latency_s=stats(measures.normalized_latency_s),
        queueing_s=stats(measures.queueing_s),
        second_token_s=stats(measures.second_token_s),
        longest_gap_s=stats(measures.longest_gap_s),
        paused_s=stats(requests.paused_s),
        swap_s=stats(requests.swap_s[started]),
        transfer_s=stats(requests.transfer_s[started]),
        slo_attainment=None if attained is None else _share(attained.sum(), attained.size),
        attainment=_together(requests, measures, about.classes),
        goodput_rps=None if attained is None else _share(attained.sum(), run.virtual_s),
        slo_by_class=_by_class(requests, attained, about.classes),
        **_moves(run, inside),
        kv_allocated_fraction=kv[0],
        kv_written_fraction=kv[1],
        unserved_tokens_fraction=_unserved(requests),
        iterations=steps if inside else None,
        mean_step_tokens=sum(i.tokens for i in run.instances) / steps if steps else None,
        mfu=_mfu(run.instances, run.virtual_s),
        mean_power_w=_per_second(energy_j, run.virtual_s),
        energy_j=energy_j,
        energy_per_token_j=energy_j / num_tokens if energy_j is not None and num_tokens else None,
        predictor=about.predictor,
        instances=[_instance(i, run) for i in run.instances],
        decision_us=_decisions(run.decision_s),
    )


def _moves(run: RunLog, inside: bool) -> dict[str, Any]:
    """The report's figures on preemptions and migrations: None, seen from outside."""
    requests = run.requests
    moves = {
        "preemptions": int(requests.preemptions.sum()),
        "preempted_requests_fraction": _share(requests.preempted_after_first.sum(), len(requests)),
        "recomputed_tokens": int(requests.recomputed_tokens.sum()),
        "loans": int(requests.loans.sum()),
        "swaps": run.swaps,
        "uploaded_ahead_blocks": run.uploaded_ahead_blocks,
        "handoffs": run.handoffs,
        "handoffs_failed": run.handoffs_failed,
        "flips": run.flips,
        "sent_bytes": round(sum(instance.sent_bytes for instance in run.instances)),
    }
    return moves if inside else dict.fromkeys(moves)


def stats(values: npt.ArrayLike) -> Stats:
    """Mean, percentiles (linear between ranks) and maximum of the values that are not NaN."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if not known.size:
        return UNKNOWN
    p50, p90, p95, p99 = map(float, np.percentile(known, PERCENTILES))
    return Stats(
        mean=float(known.mean()), p50=p50, p90=p90, p95=p95, p99=p99, max=float(known.max())
    )


def _decisions(taken_s: npt.NDArray[np.float64]) -> Decisions | None:
    if not taken_s.size:
        return None
    p50, p99 = (1e6 * np.percentile(taken_s, (50, 99))).tolist()
    return Decisions(int(taken_s.size), p50, p99)


def _attained(
    requests: RequestLog, measures: Measures, classes: Sequence[Promise]
) -> npt.NDArray[np.bool_] | None:
    """Whether each request, [N], finished and met every promise of its class; None: none promised.

    An answer of one token has no TPOT and no gap, and so cannot miss their promises.
    """
    if classes and len(requests) and requests.slo_class.max() >= len(classes):
        raise ReportError(
            f"a request is of class {requests.slo_class.max()}, but there are {len(classes)}"
        )
    if len({promise.name for promise in classes}) < len(classes):
        raise ReportError("two SLO classes have the same name")
    if not any(
        p.ttft_s or p.tpot_s or p.gap_s or p.normalized_latency_s or p.scale for p in classes
    ):
        return None
    tpot_s = np.where(requests.output_tokens > 1, measures.tpot_s, 0.0)
    met: npt.NDArray[np.bool_] = requests.outcome == Outcome.FINISHED
    for measured, promised in (
        (measures.ttft_s, [p.ttft_s for p in classes]),
        (tpot_s, [p.tpot_s for p in classes]),
        (np.nan_to_num(measures.longest_gap_s), [p.gap_s for p in classes]),
        (measures.normalized_latency_s, [p.normalized_latency_s for p in classes]),
        (measures.jct_s / requests.alone_s, [p.scale for p in classes]),
    ):
        limit = np.asarray(promised, np.float64)[requests.slo_class]
        met &= (limit == 0) | (measured <= limit)
    return met


def _together(requests: RequestLog, measures: Measures, classes: Sequence[Promise]) -> float | None:
    """The share of requests that kept TTFT and TPOT, whatever else was promised."""
    both = [Promise(promise.name, promise.ttft_s, promise.tpot_s) for promise in classes]
    kept = _attained(requests, measures, both)
    return None if kept is None else _share(kept.sum(), kept.size)


def _by_class(
    requests: RequestLog, attained: npt.NDArray[np.bool_] | None, classes: Sequence[Promise]
) -> dict[str, float]:
    """The attainment of every class that has requests."""
    if attained is None:
        return {}
    members = ((p.name, requests.slo_class == index) for index, p in enumerate(classes))
    return {name: float(attained[mask].mean()) for name, mask in members if mask.any()}


def _unserved(requests: RequestLog) -> float:
    """The share of the wanted output tokens that was not out at the last arrival."""
    if not len(requests):
        return 0.0
    delivered = tokens_delivered(requests, float(requests.arrival_s[-1]))
    missing = np.maximum(requests.asked_tokens - delivered, 0)
    return _share(missing.sum(), requests.asked_tokens.sum(dtype=np.int64))


def _kv_fractions(run: RunLog) -> tuple[float | None, float | None]:
    """Mean shares of KV allocated and written, over the middle of the run and over instances."""
    window = completion_window(run.requests)

    def mean(values: list[list[float]]) -> float | None:
        if window is None or not any(values):
            return None
        pairs = zip(run.instances, values, strict=True)
        return float(np.mean([means_between(i.sample_s, v, window)[0] for i, v in pairs]))

    return (
        mean([i.sample_allocated for i in run.instances]),
        mean([i.sample_written for i in run.instances]),
    )


def _instance(log: InstanceLog, run: RunLog) -> InstanceReport:
    begin_s = float(run.requests.arrival_s[0]) if len(run.requests) else 0.0
    running = 0.0
    if run.virtual_s > 0:
        edges = (begin_s, begin_s + run.virtual_s)
        running = float(means_between(log.sample_s, log.sample_running, edges)[0])
    energy_j = _energy([log])
    return InstanceReport(
        name=log.name,
        devices=log.num_devices,
        steps=log.steps,
        busy_fraction=_share(log.busy_s, run.virtual_s),
        mean_step_tokens=_share(log.tokens, log.steps),
        mean_running=running,
        mfu=_mfu([log], run.virtual_s),
        mean_power_w=_per_second(energy_j, run.virtual_s),
        energy_j=energy_j,
        role=log.role,
        transfers=log.transfers,
        sent_bytes=round(log.sent_bytes),
        transfer_s=log.transfer_s,
        operators={
            name: OperatorReport(operator.calls, operator.size / operator.calls, operator.time_s)
            for name, operator in log.operators.items()
        },
    )


def _mfu(instances: Sequence[InstanceLog], virtual_s: float) -> float | None:
    """Operations done over the devices' peak in the whole run, idle time included."""
    if not instances or not all(i.peak_flops for i in instances) or virtual_s <= 0:
        return None
    return sum(i.flops for i in instances) / (sum(i.peak_flops for i in instances) * virtual_s)


def _energy(instances: Sequence[InstanceLog]) -> float | None:
    """Joules of all instances; None where a working instance does not know its own."""
    if any(i.steps and not i.energy_j for i in instances):
        return None
    return sum(i.energy_j for i in instances) or None


def _per_second(amount: float | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0 else amount / seconds


def _share(part: float | np.integer, whole: float | np.integer) -> float:
    """`part / whole`, 0 where there is no whole."""
    return float(part) / float(whole) if whole > 0 else 0.0
