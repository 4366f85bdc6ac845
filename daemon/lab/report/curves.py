"""The shape of a run: quantiles of its latencies, and means over equal parts of its time."""

import numpy as np

from daemon.lab.report.measures import means_between, measure
from daemon.lab.report.records import Float32, Float64, InstanceLog, RequestLog, RunLog
from daemon.lab.report.report import Curves

NUM_QUANTILES = 101
NUM_TIMES = 160
"""Points of a curve: more would not be visible, and a long run's file would grow without bound."""
_DIGITS = 5


def curves_of(run: RunLog) -> Curves:
    """The curves of a run; a series that nobody measured is missing."""
    measures = measure(run.requests)
    latencies: dict[str, Float64 | Float32] = {
        "ttft_s": measures.ttft_s,
        "tpot_s": measures.tpot_s,
        "gap_s": run.requests.gap_s,
        "jct_s": measures.jct_s,
    }
    begin_s = float(run.requests.arrival_s[0]) if len(run.requests) else 0.0
    edges = np.linspace(begin_s, begin_s + run.virtual_s, NUM_TIMES + 1)
    series = _series(run, edges) if run.virtual_s > 0 else {}
    return Curves(
        quantiles={name: _rounded(_quantiles(values)) for name, values in latencies.items()},
        begin_s=begin_s,
        end_s=begin_s + run.virtual_s,
        series={name: _rounded(values) for name, values in series.items()},
    )


def _quantiles(values: Float64 | Float32) -> Float64:
    known = values[~np.isnan(values)].astype(np.float64)
    if not known.size:
        return np.zeros(0)
    found: Float64 = np.quantile(known, np.linspace(0.0, 1.0, NUM_QUANTILES))
    return found


def _series(run: RunLog, edges: Float64) -> dict[str, Float64]:
    logs = [log for log in run.instances if log.sample_s]
    found = _as_clients_see(run.requests, edges)
    if not logs:
        return found

    def total(name: str) -> Float64:
        rows = [means_between(log.sample_s, getattr(log, name), edges) for log in logs]
        summed: Float64 = np.sum(rows, axis=0)
        return summed

    found["waiting"], found["running"] = total("sample_waiting"), total("sample_running")
    found["step_tokens"] = total("sample_step_tokens") / len(logs)
    if all(log.sample_allocated for log in logs):
        found["kv_allocated"] = total("sample_allocated") / len(logs)
        found["kv_written"] = total("sample_written") / len(logs)
    if all(log.sample_energy_j for log in logs):
        found["power_w"] = np.sum([_power(log, edges) for log in logs], axis=0)
    return found


def _as_clients_see(requests: RequestLog, edges: Float64) -> dict[str, Float64]:
    """Requests that wait for their first token, and answers that have begun."""
    begun = ~np.isnan(requests.first_s)
    return {
        "waiting": _present(requests.arrival_s[begun], requests.first_s[begun], edges),
        "running": _present(requests.first_s[begun], requests.last_s[begun], edges),
    }


def _present(from_s: Float64, to_s: Float64, edges: Float64) -> Float64:
    """The mean number between both times, for each stretch of edges."""
    at_s = np.concatenate((from_s, to_s))
    order = np.argsort(at_s, kind="stable")
    change = np.concatenate((np.ones(from_s.size), -np.ones(to_s.size)))[order]
    return means_between(at_s[order].tolist(), np.cumsum(change).tolist(), edges)


def _power(log: InstanceLog, edges: Float64) -> Float64:
    """Watts between edges, from the energy spent until each sample."""
    spent = np.interp(edges, log.sample_s, log.sample_energy_j)
    watts: Float64 = np.diff(spent) / np.diff(edges)
    return watts


def _rounded(values: Float64) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
