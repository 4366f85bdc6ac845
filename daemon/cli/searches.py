"""Searches of `llmd simulate`: `--capacity`, and `--sweep` over rates, policies and profiles."""

import argparse
import math
import sys
from pathlib import Path

import msgspec

from daemon.cli.argument_parser import add_flags, offer
from daemon.cli.defaults import of_default
from daemon.cli.faults import UsageError
from daemon.cli.outputs import write_text
from daemon.cli.profile_warnings import warn_of_named
from daemon.cli.scenario_flags import scenario_of
from daemon.lab.planner.capacity import find_capacity
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.goal import Goal, Trial
from daemon.lab.planner.pareto import ParetoPoint, plot_pareto
from daemon.lab.planner.price import DEFAULT_PRICES, load_prices, qps_per_dollar, rent_per_hour
from daemon.lab.planner.sweep import Key, SweepRow, grid, sweep, table
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import names
from daemon.lab.report.numbers import aligned, percent, plain, seconds, three_digits
from daemon.lab.report.render import as_json, as_text
from daemon.lab.report.report import Report
from daemon.lab.simulator.scenario import Scenario
from daemon.lab.workload.build import check
from daemon.scheduler.policies import POLICIES

_BELONGS = {
    "--sweep": ("--rates", "--policies", "--profiles", "--workers", "--prices", "--pareto"),
    "--capacity": ("--attainment", "--slo-p99-normalized-latency", "--slo-p99-queueing"),
}
_OF_ONE_RUN = ("--csv", "--plot", "--html", "--perfetto", "--journal-out", "--journal")

Rents = dict[Key, float | None]
"""Dollars per hour of each point; None: not known."""


def add_search_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of searches, in a group of their own."""
    group = parser.add_argument_group("searches")
    group.add_argument(
        "--capacity",
        action="store_true",
        help="find the highest rate that keeps the --slo-... bounds and the promises of the "
        "classes, by bisection; a rate counts only if at the last arrival at most 2 %% of the "
        "asked tokens are unserved, or, with --slo-ttft and --slo-tpot, if both are kept together",
    )
    for flag, what in (
        (
            "--attainment",
            "share of each class's requests that must keep their promises "
            f"{of_default(Goal().attainment)}",
        ),
        ("--slo-p99-normalized-latency", "bound on its 99th percentile, in seconds"),
        ("--slo-p99-queueing", "bound on the 99th percentile of queueing, in seconds"),
    ):
        group.add_argument(flag, type=float, metavar="X", help=what)
    group.add_argument(
        "--sweep",
        action="store_true",
        help="every combination of --rates, --policies and --profiles, on all cores",
    )
    add_flags(group, ("--rates", floats, None, "R,R,...", "of a sweep (default: --rate)"))
    policies = group.add_argument(
        "--policies", type=words, metavar="P,P,...", help="of a sweep (default: --policy)"
    )
    offer(policies, tuple(POLICIES))
    profiles = group.add_argument(
        "--profiles", type=words, metavar="NAME,NAME,...", help="of a sweep (default: --profile)"
    )
    offer(profiles, names())
    known = ", ".join(f"{name} {price:.2f}" for name, price in DEFAULT_PRICES.items())
    prices = f"TOML with dollars per device-hour in [price] (default: {known})"
    add_flags(
        group,
        ("--workers", int, None, "N", "processes of a sweep (default: one a core)"),
        ("--prices", Path, None, "FILE", prices),
        ("--pareto", Path, None, "FILE", "draw cost against latency; .svg or .png"),
    )


def check_search_flags(arguments: argparse.Namespace) -> None:
    """Refuse flags that would do nothing. Raises UsageError."""
    for search, flags in _BELONGS.items():
        for flag in flags:
            if _given(arguments, flag) and not _given(arguments, search):
                raise UsageError(f"{flag} needs {search}: without it there is nothing to search")
    if arguments.workers is not None and arguments.workers < 0:
        raise UsageError(f"--workers must not be below 0, got {arguments.workers}")
    for flag in _OF_ONE_RUN:
        if _given(arguments, flag) and (arguments.sweep or arguments.capacity):
            raise UsageError(
                f"{flag} is of one run, and --sweep and --capacity make many: simulate the point "
                "that matters by itself"
            )


def capacity(arguments: argparse.Namespace) -> int:
    """Search for the capacity, and print the report of the run at the rate found."""
    scenario = scenario_of(arguments)
    warn_of_named(group.profile for group in scenario.instance)
    report = find_capacity(scenario, _goal(arguments), progress=_print_trial).as_report()
    write_text(arguments, as_json(report), as_text(report))
    return 0


def sweep_all(arguments: argparse.Namespace) -> int:
    """Simulate every point and print a row for each. 0: all could be simulated; 1: some not."""
    scenario = scenario_of(arguments)
    points = grid(
        scenario, arguments.rates or (), arguments.policies or (), arguments.profiles or ()
    )
    if not arguments.capacity:
        for point in points.values():
            check(point.workload)
    warn_of_named(group.profile for point in points.values() for group in point.instance)
    goal = _goal(arguments) if arguments.capacity else None
    rents = _rents(arguments, points)
    rows = []
    for row in sweep(points, arguments.workers or 0, goal):
        rows.append(row)
        print(f"{len(rows)} of {len(points)}: {_named(row.key)}", file=sys.stderr)
    rows = table(points, rows)
    found = msgspec.json.encode([_plain(row, rents[row.key]) for row in rows], enc_hook=plain)
    cells = [list(_HEAD), *(_cells(row, rents[row.key]) for row in rows)]
    write_text(arguments, msgspec.json.format(found.decode(), indent=2), "\n".join(aligned(cells)))
    if arguments.pareto is not None:
        _draw(arguments, rows, rents)
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


def _rents(arguments: argparse.Namespace, points: dict[Key, Scenario]) -> Rents:
    """The rent of each point, known before anything is simulated. Raises PlannerError."""
    prices = DEFAULT_PRICES if arguments.prices is None else load_prices(arguments.prices)
    rents: Rents = {}
    faults = []
    for key, scenario in points.items():
        rents[key] = None
        try:
            rents[key] = rent_per_hour(scenario, prices)
        except ProfileError:
            pass  # the point's row will say why
        except PlannerError as error:
            faults.append(str(error))
    if faults and arguments.pareto is not None:
        raise PlannerError(f"--pareto needs what every point costs: {faults[0]}")
    for fault in dict.fromkeys(faults):
        print(f"llmd: {fault}", file=sys.stderr)
    return rents


def _cells(row: SweepRow, rent: float | None) -> list[str]:
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
        three_digits(_per_dollar(report, rent)),
    ]


def _rate(report: Report) -> float:
    """The report's capacity where it was searched, else the rate that was served."""
    return report.throughput_rps if report.capacity_rps is None else report.capacity_rps


def _per_dollar(report: Report, rent: float | None) -> float | None:
    return None if rent is None else qps_per_dollar(_rate(report), rent)


def _draw(arguments: argparse.Namespace, rows: list[SweepRow], rents: Rents) -> None:
    shown = []
    for row in rows:
        report = row.report
        if report is None or report.normalized_latency_s.mean is None:
            continue
        per_dollar = _per_dollar(report, rents[row.key])
        if per_dollar:
            latency_s = report.normalized_latency_s.mean
            shown.append(ParetoPoint(_named(row.key), 1.0 / (3600.0 * per_dollar), latency_s))
    hourly = sorted({f"{row.key.profile} {rents[row.key]:.2f}" for row in rows if rents[row.key]})
    prices = ", ".join(hourly) if len(hourly) <= 3 else f"{len(hourly)} rents, see the table"
    cost = f"dollars per request\n(dollars an hour: {prices})"
    plot_pareto(shown, arguments.pareto, cost, "mean latency per output token (s)")


def _goal(arguments: argparse.Namespace) -> Goal:
    bounds = {
        "normalized_latency_s": arguments.slo_normalized_latency,
        "p99_normalized_latency_s": arguments.slo_p99_normalized_latency,
        "ttft_s": arguments.slo_ttft,
        "tpot_s": arguments.slo_tpot,
        "gap_s": arguments.slo_gap,
        "attainment": arguments.attainment,
        "p99_queueing_s": arguments.slo_p99_queueing,
    }
    if arguments.slo_ttft is not None and arguments.slo_tpot is not None:
        bounds["unserved_fraction"] = 1.0  # both SLOs, kept together, are the whole condition
    return Goal(**{name: bound for name, bound in bounds.items() if bound is not None})


def _given(arguments: argparse.Namespace, flag: str) -> bool:
    value = getattr(arguments, flag[2:].replace("-", "_"))
    return value is not None and value is not False  # 0 is a value


def _print_trial(trial: Trial) -> None:
    verdict = "sustained" if trial.sustained else f"not sustained: {', '.join(trial.failed)}"
    print(f"{trial.rate_rps:.4g} requests/s {verdict}", file=sys.stderr)


def _named(key: Key) -> str:
    rate = f" {key.rate_rps:g}/s" if key.rate_rps else ""
    return f"{key.profile} {key.policy}{rate}"


def _plain(row: SweepRow, rent: float | None) -> dict[str, object]:
    """A row as plain values, for JSON."""
    per_dollar = _per_dollar(row.report, rent) if row.report is not None else None
    return {
        **row.key._asdict(),
        "error": row.error,
        "dollars_per_hour": rent,
        "qps_per_dollar": per_dollar,
        "report": row.report,
    }


def floats(text: str) -> tuple[float, ...]:
    """A flag's numbers with commas between them."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise argparse.ArgumentTypeError(f"expected numbers with commas, got {text!r}")
    return found


def words(text: str) -> tuple[str, ...]:
    """A flag's words with commas between them."""
    return tuple(part for part in text.split(",") if part)
