"""The page of a plan: its figures, the front of value against latency, and the best one's run."""

from collections.abc import Sequence

import numpy as np

from daemon.lab.planner.evaluate import Problem, prepared_of
from daemon.lab.planner.objective import OBJECTIVES
from daemon.lab.planner.pareto import ParetoPoint, pareto_front
from daemon.lab.planner.plan import DeploymentPlan, Verified
from daemon.lab.report.charts import ChartLine, ChartPoint, axis_of, chart, number, time_tick
from daemon.lab.report.curves import curves_of
from daemon.lab.report.numbers import percent, seconds, three_digits
from daemon.lab.report.page import (
    NamedRun,
    figure,
    heading,
    lines_as_written,
    page,
    parts_of_run,
    section,
    table,
    tiles,
)
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import Options, run

_LATENCIES = (("ttft_p99_s", "P99 TTFT"), ("tpot_p99_s", "P99 TPOT"))


def page_of_plan(problem: Problem, found: DeploymentPlan, reasons: str) -> str:
    """The whole page; the best candidate runs once more on the first held-out slice."""
    best = found.best
    fronts = [drawn for each in _LATENCIES if (drawn := _front(found, *each))] or [
        figure("Value against latency", "", [("", "no candidate has a latency")])
    ]
    return page(
        best.candidate.text,
        [
            heading(best.candidate.text, [found.condition, OBJECTIVES[found.objective.name]]),
            tiles(_headline(found)),
            section("Every candidate that kept the SLOs", fronts),
            section("Verified on requests that the search has not seen", [_verified(found)], True),
            *_run(problem, found),
            section("Reasons", [lines_as_written(reasons)], wide=True),
        ],
    )


def _headline(found: DeploymentPlan) -> list[tuple[str, str]]:
    best = found.best
    figures = [
        ("requests/s", three_digits(best.goodput_rps)),
        ("of promises kept", percent(best.attainment)),
        ("P99 TTFT", seconds(best.ttft_p99_s)),
        ("P99 TPOT", seconds(best.tpot_p99_s)),
        ("spread of slices", percent(best.spread)),
    ]
    if found.present is not None and found.present.value:
        gain = best.value / found.present.value - 1.0
        figures.append(("gain over the present one", percent(gain)))
    return [*figures, ("simulations", f"{found.tried + found.found:,}")]


def _front(found: DeploymentPlan, name: str, title: str) -> str:
    """Each candidate's value and latency, and those that no other one beats in both."""
    objective = found.objective
    known = [
        (candidate, objective.value(candidate, score.rate_rps), getattr(score, name))
        for candidate, score in found.points
        if getattr(score, name) is not None
    ]
    if not known:
        return ""
    values = np.array([value for _, value, _ in known])
    latencies = np.array([latency for _, _, latency in known])
    x, y = axis_of(values, number), axis_of(latencies, time_tick)
    if x is None or y is None:
        return ""
    front = pareto_front(
        ParetoPoint(candidate.text, -value, latency) for candidate, value, latency in known
    )
    chosen = found.best.candidate
    points = [
        ChartPoint(
            value,
            latency,
            f"{candidate.text}: {three_digits(value)}, {seconds(latency)}",
            "c1" if candidate == chosen else "c0" if _is_on(front, value, latency) else "c3",
            "chosen" if candidate == chosen else "",
        )
        for candidate, value, latency in known
    ]
    steps = ChartLine(
        "front", np.array([-p.cost for p in front]), np.array([p.latency_s for p in front]), "c0"
    )
    notes = [("", f"{OBJECTIVES[objective.name]}, to the right"), ("c0", "no other beats it")]
    return figure(f"{title} and value", chart(title, x, y, [steps], points), notes)


def _is_on(front: Sequence[ParetoPoint], value: float, latency_s: float) -> bool:
    return any(point.cost == -value and point.latency_s == latency_s for point in front)


def _verified(found: DeploymentPlan) -> str:
    rows = [["candidate", "requests/s", "spread", "kept", "P99 TTFT", "P99 TPOT", "W", "value"]]
    rows += [_row(each) for each in found.verified]
    if found.present is not None and found.present not in found.verified:
        name, *cells = _row(found.present)
        rows.append([f"present: {name}", *cells])
    return table(rows)


def _row(each: Verified) -> list[str]:
    return [
        each.candidate.text,
        three_digits(each.goodput_rps),
        percent(each.spread),
        percent(each.attainment),
        seconds(each.ttft_p99_s),
        seconds(each.tpot_p99_s),
        three_digits(each.mean_power_w),
        three_digits(each.value),
    ]


def _run(problem: Problem, found: DeploymentPlan) -> list[str]:
    """The best candidate's run at its goodput."""
    part, best = found.held_out[0], found.best
    prepared = prepared_of(problem, best.candidate, best.goodput_rps, part)
    log = run(prepared, Options(energy=True))
    report = report_of(prepared, log)
    label = f"{part.requests:,} requests at {three_digits(best.goodput_rps)} requests/s"
    return [
        f'<h2>Its run on a held-out slice</h2><p class="mute">{label}</p>',
        *parts_of_run(NamedRun("", report, curves_of(log))),
    ]
