"""`llmd plan`: the deployment that serves a workload best, found by simulations."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from daemon.base.files import write_whole
from daemon.base.nearest import unknown
from daemon.cli.argument_parser import FILE, add_flags, offer
from daemon.cli.faults import error_text
from daemon.cli.profile_warnings import warn_of_named
from daemon.cli.progress import progress
from daemon.cli.searches import floats, words
from daemon.cli.simulate import FAILED, WRONG
from daemon.cli.workload_flags import add_workload_flags, workload_spec
from daemon.config.checks import QUANTIZE
from daemon.lab.planner.candidate import CandidatePool, Space, knobs_of, unit_of
from daemon.lab.planner.configuration import configuration
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.evaluate import Problem
from daemon.lab.planner.goal import Goal
from daemon.lab.planner.halving import RUNGS
from daemon.lab.planner.objective import OBJECTIVES, Objective
from daemon.lab.planner.plan import DeploymentPlan
from daemon.lab.planner.plan import plan as make_plan
from daemon.lab.planner.price import DEFAULT_PRICES, load_prices
from daemon.lab.planner.session import session
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import names
from daemon.lab.report.numbers import aligned, percent, seconds, three_digits
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
from daemon.scheduler.policies import POLICIES

_POLICIES = ("gittins", "sarathi", "vllm")
_BUDGETS = (512, 2048)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd plan`."""
    add_workload_flags(parser)
    group = parser.add_argument_group("what there is")
    model = group.add_argument(
        "--model", metavar="M", help="the model, as profiles name it, such as opt-13b"
    )
    offer(model, sorted({name.partition("@")[0] for name in names()}))
    add_flags(
        group,
        ("--devices", _devices, None, "KIND:N,...", "such as a100-80g:4 or h100:2,a100-80g:4"),
        (
            "--profiles",
            words,
            None,
            "NAME,FILE,...",
            "profiles of one instance, beside shipped ones",
        ),
        ("--prices", Path, None, "FILE", "TOML with dollars per device-hour in [price]"),
        ("--max-len", int, 0, "N", "tokens of the longest sequence (default: the model's context)"),
    )
    _add_space(parser)
    group = parser.add_argument_group("search and answer")
    group.add_argument(
        "--objective",
        choices=tuple(OBJECTIVES),
        default="goodput",
        help="what is to be large (default: goodput): "
        + "; ".join(f"{name}, {what}" for name, what in OBJECTIVES.items()),
    )
    add_flags(
        group,
        ("--attainment", float, 0.9, "X", "share of requests that keep the SLOs (default: 0.9)"),
        ("--slo-p99-queueing", float, 0.0, "S", "bound on the 99th percentile of queueing"),
        ("--workers", int, 0, "N", "processes (default: one a core)"),
        (
            "--resume",
            Path,
            None,
            "FILE",
            "keep every simulation's result here, and begin with them",
        ),
    )
    group.add_argument("--exhaustive", action="store_true", help="simulate every candidate in full")
    group.add_argument("--json", action="store_true", help="print JSON instead of a page")
    out = group.add_argument("--out", type=Path, metavar="F.toml", help="write the configuration")
    offer(out, FILE)


def _add_space(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("values to try, with commas between them")
    policies = group.add_argument(
        "--policies",
        type=words,
        metavar="P,P,...",
        help=f"policies (default: {','.join(_POLICIES)})",
    )
    offer(policies, tuple(POLICIES))
    add_flags(
        group,
        (
            "--budgets",
            _ints,
            None,
            "N,...",
            "token budgets of a step; 0: the policy's own (default: 512,2048)",
        ),
        (
            "--chunks",
            _ints,
            None,
            "N,...",
            "prompt tokens of a sequence in a step (default: 0, the budget)",
        ),
        ("--running", _ints, None, "N,...", "sequences in a batch (default: 0, a daemon's)"),
        ("--kv-bytes", floats, None, "B,...", "block pools (default: 0, the memory formula's)"),
        ("--stages", _ints, None, "N,...", "pipeline stages (default: 1)"),
        (
            "--caps",
            floats,
            None,
            "X,...",
            "power caps of mixed and decode instances (default: 1)",
        ),
        (
            "--quantize",
            words,
            None,
            "KIND,...",
            f"weights: {', '.join(QUANTIZE)} (default: none)",
        ),
    )
    group.add_argument(
        "--no-split", action="store_true", help="no instances for prefill or decode alone"
    )


def plan(arguments: argparse.Namespace) -> int:
    """Search and answer. 0: done; 1: it failed, or nothing keeps the SLOs; 2: wrong flags."""
    try:
        problem, objective = _problem(arguments), _objective(arguments)
        space = _space(arguments, partial=bool(objective.rate_rps) or objective.name != "goodput")
        warn_of_named(unit.profile for unit in space.units)
        rungs = _rungs(arguments.requests)
        with (
            progress() as show,
            session(arguments.resume, arguments.workers, show) as made,
        ):
            found = make_plan(
                made, problem, objective, space, rungs=rungs, exhaustive=arguments.exhaustive
            )
<<<<<<< HEAD


def capacity(arguments: argparse.Namespace) -> int:
    """Search for the capacity, and print the report of the run at the rate found."""
    scenario = scenario_of(arguments)
    warn_of_named((group.profile for group in scenario.instance), scenario.step_times)
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
    profiles = [group.profile for point in points.values() for group in point.instance]
    warn_of_named(profiles, scenario.step_times)
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


def _floats(text: str) -> tuple[float, ...]:
=======
        if not found.verified:
            print(f"llmd: {_nothing(found)}", file=sys.stderr)
            return 1
        _answer(arguments, problem, found)
    except BrokenPipeError:  # of stdout: the caller handles it
        raise
    except WRONG as error:
        print(f"llmd: {error_text(error)}", file=sys.stderr)
        return 2
    except FAILED as error:
        print(f"llmd: {error_text(error)}", file=sys.stderr)
        return 1
    return 0


def _nothing(found: DeploymentPlan) -> str:
>>>>>>> 8807b38d (llmd plan: candidates, bounds, one kept evaluation, successive halving, held-out slices, a configuration)
    try:
        return str(found.best)
    except PlannerError as error:
        return str(error)


def _answer(arguments: argparse.Namespace, problem: Problem, found: DeploymentPlan) -> None:
    reasons = as_page(found)
    if arguments.out is not None:
        model = arguments.model or ""
        known = {name.partition("@")[0] for name in names()}
        path = "" if model in known or not model else model
        text = configuration(found.best.candidate, problem.goal, path, reasons)
        write_whole(arguments.out, text.encode())
    if arguments.json:
        encoded = msgspec.json.encode(found.as_json())
        print(msgspec.json.format(encoded.decode(), indent=2), flush=True)
    else:
        print(reasons, flush=True)


def as_page(found: DeploymentPlan) -> str:
    """The answer with its reasons, as lines."""
    best, rest = found.best, found.verified[1:]
    lines = [
        f"plan: {best.candidate.text}",
        f"  {three_digits(best.goodput_rps)} requests/s with {found.condition}",
        f"  {percent(best.attainment)} attained, P99 TTFT {seconds(best.ttft_p99_s)}, "
        f"P99 TPOT {seconds(best.tpot_p99_s)}",
        f"  binds: {', '.join(best.limited_by) or 'nothing at this rate'}",
        f"  spread over held-out slices: {percent(best.spread)} of the rate, "
        f"{percent(best.attainment_spread)} of attainment",
    ]
    if rest:
        second = rest[0]
        loss = 1.0 - second.value / best.value
        sure = "more" if loss > best.spread else "not more"
        lines.append(
            f"runner-up: {second.candidate.text}: {percent(loss)} less, {sure} than the spread"
        )
        cells = [["CANDIDATE", "REQ/S", "SPREAD", "ATTAINED", "VALUE"]]
        cells += [
            [
                each.candidate.text,
                three_digits(each.goodput_rps),
                percent(each.spread),
                percent(each.attainment),
                three_digits(each.value),
            ]
            for each in found.verified
        ]
        lines += ["", *aligned(cells), ""]
    dropped = ", ".join(f"{count} {why}" for why, count in found.dropped.items()) or "none"
    lines.append(
        f"{found.candidates} candidates ({dropped}, not simulated further), "
        f"{found.tried} simulations, {found.requests:,} requests searched, {found.wall_s:.0f} s"
    )
    return "\n".join(lines)


def _rungs(requests: int | None) -> tuple[int, ...]:
    if requests is None:
        return RUNGS
    if requests < 32:
        raise PlannerError(f"--requests must be at least 32, got {requests}")
    return tuple(dict.fromkeys((max(20, requests // 16), max(20, requests // 4), requests)))


def _problem(arguments: argparse.Namespace) -> Problem:
    spec = workload_spec(arguments)
    spec = msgspec.structs.replace(spec, rate=0.0, rate_scale=0.0, requests=0)
    goal = Goal(
        ttft_s=arguments.slo_ttft or 0.0,
        tpot_s=arguments.slo_tpot or 0.0,
        gap_s=arguments.slo_gap or 0.0,
        normalized_latency_s=arguments.slo_normalized_latency or 0.0,
        p99_queueing_s=arguments.slo_p99_queueing,
        attainment=arguments.attainment,
        unserved_fraction=1.0,
    )
    promised = any(each.ttft_s or each.tpot_s or each.gap_s for each in spec.classes)
    if not promised and not (goal.p99_queueing_s or goal.normalized_latency_s):
        raise PlannerError("what must be kept? give --slo-ttft S and --slo-tpot S")
    limits = ScenarioLimits(max_len=arguments.max_len)
    return Problem(base=Scenario(workload=spec, instance=(), limits=limits), goal=goal)


def _objective(arguments: argparse.Namespace) -> Objective:
    prices = DEFAULT_PRICES if arguments.prices is None else load_prices(arguments.prices)
    return Objective(name=arguments.objective, rate_rps=arguments.rate or 0.0, prices=dict(prices))


def _space(arguments: argparse.Namespace, partial: bool) -> Space:
    for policy in arguments.policies or ():
        if policy not in POLICIES:
            raise PlannerError(unknown("policy", policy, tuple(POLICIES)))
    units = _units(arguments)
    devices = arguments.devices or {unit.device: unit.num_devices for unit in units}
    plain = knobs_of(
        arguments.policies or _POLICIES,
        arguments.budgets or _BUDGETS,
        arguments.chunks or (0,),
        arguments.running or (0,),
        arguments.kv_bytes or (0.0,),
    )
    return Space(
        units=tuple(unit for unit in units if unit.device in devices),
        devices=devices,
        knobs=plain,
        caps=arguments.caps or (1.0,),
        split=not arguments.no_split,
        partial=partial,
    )


def _units(arguments: argparse.Namespace) -> list[CandidatePool]:
    """One instance of each profile that the flags name. Raises PlannerError, ProfileError."""
    given = [name for name in arguments.profiles or () if name]
    if arguments.model is not None and not given:
        known = sorted({name.partition("@")[0] for name in names()})
        if arguments.model not in known:
            raise PlannerError(unknown("model", arguments.model, known))
        given = [name for name in names() if name.partition("@")[0] == arguments.model]
    if not given:
        raise PlannerError("which model? give --model M, or --profiles with a measured one")
    found = []
    for name in given:
        for weights in arguments.quantize or ("none",):
            for stages in arguments.stages or (1,):
                form = "" if weights == "none" else weights
                full = name + f"-{form}" * bool(form) + f"-pp{stages}" * (stages > 1)
                try:
                    found.append(unit_of(full, form))
                except ProfileError:
                    if full == name:
                        raise
    kinds = {unit.device for unit in found}
    for kind in arguments.devices or ():
        if kind not in kinds:
            raise PlannerError(unknown("device", kind, sorted(kinds)))
    return found


def _devices(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        kind, _, count = part.strip().rpartition(":")
        if not kind or not (count.isascii() and count.isdigit()) or not int(count[:6]):
            raise argparse.ArgumentTypeError(f"expected KIND:N such as a100-80g:4, got {part!r}")
        found[kind] = found.get(kind, 0) + int(count[:6])
    return found


def _ints(text: str) -> Sequence[int]:
    numbers = floats(text)
    if any(number != int(number) or number < 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas, got {text!r}")
    return tuple(int(number) for number in numbers)
