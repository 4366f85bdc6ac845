"""Searches of `llmd simulate`: `--capacity`, and `--sweep` over rates, policies and profiles."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from daemon.cli.scenario_flags import scenario_of
from daemon.planner.capacity import find_capacity
from daemon.planner.goal import Goal, Trial
from daemon.planner.pareto import Point, plot_pareto
from daemon.planner.price import DEFAULT_PRICES, load_prices, qps_per_dollar
from daemon.planner.sweep import Key, Row, grid, sweep, table
from daemon.profiles.load import load_profile
from daemon.report.numbers import aligned, percent, seconds
from daemon.report.render import as_json, as_text
from daemon.report.report import Report
from daemon.simulator.scenario import Scenario


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    """Add them, in a group of their own."""
    group = parser.add_argument_group("searches")
    group.add_argument(
        "--capacity",
        action="store_true",
        help="find the highest rate that keeps the --slo-... bounds, by bisection; a rate counts "
        "only if at the last arrival at most 2 %% of the asked tokens are unserved",
    )
    for flag, default, what in (
        ("--attainment", 0.9, "share of requests that must meet --slo-ttft and --slo-tpot"),
        ("--slo-p99-normalized-latency", 0.0, "bound on its 99th percentile, in seconds"),
        ("--slo-p99-queueing", 0.0, "bound on the 99th percentile of queueing, in seconds"),
    ):
        group.add_argument(flag, type=float, default=default, metavar="X", help=what)
    group.add_argument(
        "--sweep",
        action="store_true",
        help="every combination of --rates, --policies and --profiles, on all cores",
    )
    group.add_argument("--rates", type=_floats, default=(), metavar="R,R,...")
    group.add_argument("--policies", type=_words, default=(), metavar="P,P,...")
    group.add_argument("--profiles", type=_words, default=(), metavar="NAME,NAME,...")
    group.add_argument("--workers", type=int, default=0, metavar="N", help="processes of a sweep")
    group.add_argument(
        "--prices", type=Path, metavar="FILE", help="TOML with dollars per device-hour in [price]"
    )
    group.add_argument(
        "--pareto", type=Path, metavar="FILE", help="draw cost against latency; .svg or .png"
    )


def capacity(arguments: argparse.Namespace) -> int:
    """Search, and print the report of the run at the rate found."""
    found = find_capacity(scenario_of(arguments), _goal(arguments), progress=_told)
    report = found.as_report()
    text = as_json(report)
    print(text if arguments.json else as_text(report), flush=True)
    if not arguments.json:
        print(
            f"\ncapacity     {found.rps:.3g} requests/s ({found.failed_rps:.3g} fails: "
            f"{found.limited_by or 'no bound'})\n"
            f"             {found.requests:,} requests, the first {found.warm_up_requests:,} not "
            f"measured; {found.condition}"
        )
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


def sweep_all(arguments: argparse.Namespace) -> int:
    """Simulate every point and print a row for each. 0: all could be simulated; 1: some not."""
    scenario = scenario_of(arguments)
    points = grid(scenario, arguments.rates, arguments.policies, arguments.profiles)
    goal = _goal(arguments) if arguments.capacity else None
    rows = []
    for row in sweep(points, arguments.workers, goal):
        rows.append(row)
        print(f"{len(rows)} of {len(points)}: {_named(row.key)}", file=sys.stderr)
    rows = table(points, rows)
    prices = load_prices(arguments.prices) if arguments.prices else DEFAULT_PRICES
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode([_plain(row) for row in rows]).decode()))
    else:
        print("\n".join(aligned([list(_HEAD), *(_cells(row, points, prices) for row in rows)])))
    if arguments.pareto is not None:
        _draw(arguments.pareto, rows, points, prices)
    return 1 if any(row.report is None for row in rows) else 0


_HEAD = (
    "PROFILE",
    "POLICY",
    "RATE",
    "THROUGHPUT",
    "TTFT",
    "P99 TTFT",
    "TPOT",
    "JCT/TOKEN",
    "UNSERVED",
    "REQ/S PER $/H",
)


def _cells(row: Row, points: dict[Key, Scenario], prices: Mapping[str, float]) -> list[str]:
    key, report = row.key, row.report
    head = [key.profile, key.policy, f"{key.rate_rps:g}" if key.rate_rps else "-"]
    if report is None:
        return [*head, row.error, *[""] * (len(_HEAD) - 4)]
    return [
        *head,
        f"{_rate(report):.3g}/s",
        seconds(report.ttft_s.mean),
        seconds(report.ttft_s.p99),
        seconds(report.tpot_s.mean),
        seconds(report.normalized_latency_s.mean),
        percent(report.unserved_tokens_fraction),
        f"{_per_dollar(report, points[key], prices):.3g}",
    ]


def _rate(report: Report) -> float:
    """Its capacity where one was searched, else what it served."""
    return report.throughput_rps if report.capacity_rps is None else report.capacity_rps


def _per_dollar(report: Report, scenario: Scenario, prices: Mapping[str, float]) -> float:
    """Requests per second over dollars per hour, of all its instances (Vidur section 6)."""
    spent = sum(
        1.0 / qps_per_dollar(1.0, load_profile(group.profile), group.count, prices)
        for group in scenario.instance
    )
    return _rate(report) / spent


def _draw(
    path: Path, rows: list[Row], points: dict[Key, Scenario], prices: Mapping[str, float]
) -> None:
    shown = []
    for row in rows:
        report = row.report
        if report is None or report.normalized_latency_s.mean is None:
            continue
        per_dollar = _per_dollar(report, points[row.key], prices)
        if per_dollar > 0.0:
            latency_s = report.normalized_latency_s.mean
            shown.append(Point(_named(row.key), 1.0 / (3600.0 * per_dollar), latency_s))
    plot_pareto(shown, path, "dollars per request", "mean latency per output token (s)")


def _goal(arguments: argparse.Namespace) -> Goal:
    return Goal(
        normalized_latency_s=arguments.slo_normalized_latency,
        p99_normalized_latency_s=arguments.slo_p99_normalized_latency,
        ttft_s=arguments.slo_ttft,
        tpot_s=arguments.slo_tpot,
        attainment=arguments.attainment,
        p99_queueing_s=arguments.slo_p99_queueing,
    )


def _told(trial: Trial) -> None:
    verdict = "sustained" if trial.sustained else f"not sustained: {', '.join(trial.failed)}"
    print(f"{trial.rate_rps:.4g} requests/s {verdict}", file=sys.stderr)


def _named(key: Key) -> str:
    rate = f" {key.rate_rps:g}/s" if key.rate_rps else ""
    return f"{key.profile} {key.policy}{rate}"


def _plain(row: Row) -> dict[str, object]:
    return {**row.key._asdict(), "error": row.error, "report": row.report}


def _floats(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas, got {text!r}") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)
