"""`llmd plan`: the deployment that serves a workload best, found by simulations."""

import argparse
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from daemon.base.files import write_whole
from daemon.base.nearest import unknown
from daemon.cli.argument_parser import FILE, add_flags, offer
from daemon.cli.lab_errors import status_of
from daemon.cli.outputs import check_places
from daemon.cli.profile_warnings import warn_of_named
from daemon.cli.progress import progress
from daemon.cli.searches import floats, words
from daemon.cli.workload_flags import add_workload_flags, workload_spec
from daemon.config.checks import QUANTIZE
from daemon.lab.planner.candidate import CandidatePool, Space, knobs_of, unit_of
from daemon.lab.planner.configuration import configuration
from daemon.lab.planner.distserve import AFFINITIES
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.evaluate import Problem
from daemon.lab.planner.from_journal import measured_attainment, present, write_trace
from daemon.lab.planner.goal import Goal
from daemon.lab.planner.halving import RUNGS
from daemon.lab.planner.objective import OBJECTIVES, Objective
from daemon.lab.planner.plan import SEARCHES, DeploymentPlan
from daemon.lab.planner.plan import plan as make_plan
from daemon.lab.planner.plan_page import page_of_plan
from daemon.lab.planner.price import DEFAULT_PRICES, load_prices
from daemon.lab.planner.session import session
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import names
from daemon.lab.report.numbers import aligned, percent, seconds, three_digits
from daemon.lab.simulator.journal import read_incident
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass
from daemon.models.embedded import EMBEDDED_NAME
from daemon.scheduler.policies import POLICIES

_POLICIES = ("gittins", "sarathi", "vllm")
_BUDGETS = (512, 2048)
_MOST_DEVICES = 1000
_DIGITS = 6
"""Digits of a number of devices that are read: more are refused."""


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
    _add_search(parser)


def _add_search(parser: argparse.ArgumentParser) -> None:
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
        ("--most-rent", float, 0.0, "D", "dollars an hour at most (iso-cost)"),
        ("--most-watts", float, 0.0, "W", "watts provisioned at most (iso-power)"),
        ("--workers", int, 0, "N", "processes (default: one a core)"),
        (
            "--resume",
            Path,
            None,
            "FILE",
            "keep every simulation's result here, and begin with them",
        ),
    )
    group.add_argument(
        "--search",
        choices=tuple(SEARCHES),
        default="vidur",
        help="as a paper searches (default: vidur): "
        + "; ".join(f"{n}, {what}" for n, what in SEARCHES.items()),
    )
    group.add_argument(
        "--affinity",
        choices=AFFINITIES,
        default="high",
        help="of distserve (default: high): KV crosses nodes, or stays in one, --devices",
    )
    journal = group.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="a daemon's journal instead of a workload; --profiles has its instances' profile",
    )
    offer(journal, FILE)
    group.add_argument("--exhaustive", action="store_true", help="simulate every candidate in full")
    group.add_argument("--json", action="store_true", help="print JSON instead of a page")
    for flag, form, what in (
        ("--out", "F.toml", "write the configuration"),
        ("--html", "FILE", "write a page with the front and the best one's run, for a browser"),
    ):
        offer(group.add_argument(flag, type=Path, metavar=form, help=what), FILE)


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
            _caps,
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
    return status_of(partial(_checked, arguments))


def _checked(arguments: argparse.Namespace) -> int:
    objective = _objective(arguments)
    check_places(arguments)
    with TemporaryDirectory() as folder:
        return _planned(arguments, objective, Path(folder))


def _planned(arguments: argparse.Namespace, objective: Objective, folder: Path) -> int:
    """Search and answer; `folder` is for a journal's requests."""
    is_partial = bool(objective.rate_rps or objective.most_rent or objective.most_power_w)
    now, incident = None, None
    if arguments.journal is not None:
        incident = read_incident(arguments.journal)
    count = len(incident.config.instances) if incident is not None else 1
    is_partial = is_partial or objective.name not in ("goodput", "makespan")
    space = _space(arguments, is_partial, count)
    warn_of_named(unit.profile for unit in space.units)
    if incident is not None:
        arguments.trace = folder / "journal.jsonl"
        write_trace(incident, arguments.trace)
        now = present(incident, space.units[0])
        own = {replace(knobs, kv_bytes=now.knobs.kv_bytes) for knobs in space.knobs}
        if not arguments.kv_bytes:
            space = replace(space, knobs=(*sorted(own, key=lambda knobs: knobs.text), now.knobs))
    problem, rungs = _problem(arguments), _rungs(arguments.requests)
    with progress() as show, session(arguments.resume, arguments.workers, show) as made:
        found = make_plan(
            made,
            problem,
            objective,
            space,
            rungs=rungs,
            exhaustive=arguments.exhaustive,
            search=arguments.search,
            affinity=arguments.affinity,
            present=now,
        )
    if not found.verified:
        print(f"llmd: {_nothing(found)}", file=sys.stderr)
        return 1
    if incident is not None:
        half = len(incident.streams) // 2
        was = measured_attainment(incident, problem.goal, half)
        print(f"llmd: the journal's second half attained {percent(was)}", file=sys.stderr)
        found = replace(found, measured=was)
    _answer(arguments, problem, found)
    return 0


def _nothing(found: DeploymentPlan) -> str:
    try:
        return str(found.best)
    except PlannerError as error:
        return str(error)


def _answer(arguments: argparse.Namespace, problem: Problem, found: DeploymentPlan) -> None:
    reasons = as_page(found)
    if arguments.json:
        encoded = msgspec.json.encode(found.as_json())
        print(msgspec.json.format(encoded.decode(), indent=2), flush=True)
    else:
        print(reasons, flush=True)
    if arguments.out is not None:
        chosen = found.best.candidate
        if found.keeps_present and found.present is not None:
            chosen = found.present.candidate
        # A profile knows its model's name alone: `serve` says that this is no folder, where without
        # it the embedded model would have the plan of another.
        name = chosen.profiles()[0][1].model.name
        model = "" if name == EMBEDDED_NAME else arguments.model or name
        text = configuration(chosen, problem.goal, model, reasons)
        write_whole(arguments.out, text.encode())
    if arguments.html is not None:
        write_whole(arguments.html, page_of_plan(problem, found, reasons).encode())


def as_page(found: DeploymentPlan) -> str:
    """The answer with its reasons, as lines."""
    best, rest = found.best, found.verified[1:]
    lines = [
        f"plan: {best.candidate.text}",
        f"  {three_digits(best.goodput_rps)} requests/s with {found.condition}",
        *_kept(found),
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
    if best.own_rate is not None:
        own, now = best.own_rate, found.present and found.present.own_rate
        beside = f", {percent(now.attainment)} with the present one" if now else ""
        at = f"at its own {three_digits(own.rate_rps)} requests/s"
        at = at if math.isfinite(own.rate_rps) else "all at once, as they came"
        lines.append(
            f"{at}: {percent(own.attainment)} attained{beside}; spread {percent(own.spread)}"
        )
    if found.present is not None:
        verdict = "keep it: the gain is within the spread" if found.keeps_present else "replace it"
        lines.append(
            f"present: {found.present.candidate.text}: "
            f"{three_digits(found.present.goodput_rps)} requests/s; {verdict}"
        )
    if found.workers != (0.0, 0.0):
        k5, c5 = found.workers
        lines.append(f"workers at r requests/s: ceil({k5:.3g} r + {c5:.3g}) (Aladdin, eq. 7)")
    dropped = ", ".join(f"{why}: {count}" for why, count in found.dropped.items())
    lines.append(
        f"{found.candidates} candidates{f' (not simulated: {dropped})' * bool(dropped)}, "
        f"{found.tried} simulations, {found.requests:,} requests searched, {found.wall_s:.0f} s"
    )
    return "\n".join(lines)


def _kept(found: DeploymentPlan) -> list[str]:
    """The latencies of the best candidate, or how long offline work takes."""
    best = found.best
    if found.objective.is_offline:
        return [f"  makespan {seconds(best.makespan_s)} of {found.held_out[0].requests:,} requests"]
    return [
        f"  {percent(best.attainment)} attained, P99 TTFT {seconds(best.ttft_p99_s)}, "
        f"P99 TPOT {seconds(best.tpot_p99_s)}",
        f"  binds: {', '.join(best.limited_by) or 'nothing at this rate'}",
    ]


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
    if arguments.objective == "makespan":
        if goal != Goal(attainment=goal.attainment, unserved_fraction=1.0):
            raise PlannerError("makespan: work that comes at once has no SLOs; leave --slo-... out")
        closed = msgspec.structs.replace(spec, arrivals="closed", classes=(SloClass(),))
        limits = ScenarioLimits(max_len=arguments.max_len)
        return Problem(base=Scenario(workload=closed, instance=(), limits=limits), goal=goal)
    promised = any(each.ttft_s or each.tpot_s or each.gap_s for each in spec.classes)
    if not promised and not (goal.p99_queueing_s or goal.normalized_latency_s):
        raise PlannerError("what must be kept? give --slo-ttft S and --slo-tpot S")
    limits = ScenarioLimits(max_len=arguments.max_len)
    return Problem(base=Scenario(workload=spec, instance=(), limits=limits), goal=goal)


def _objective(arguments: argparse.Namespace) -> Objective:
    prices = DEFAULT_PRICES if arguments.prices is None else load_prices(arguments.prices)
    rate, rent, watts = arguments.rate or 0.0, arguments.most_rent, arguments.most_watts
    if arguments.objective == "makespan" and (
        rate or arguments.search not in ("vidur", "splitwise")
    ):
        raise PlannerError("makespan: all requests come at once, so --rate and --search do not fit")
    if arguments.search == "splitwise" and not (rate or rent or watts):
        raise PlannerError(
            "splitwise: what is equal? give --rate (iso-throughput), --most-rent (iso-cost) or "
            "--most-watts (iso-power)"
        )
    return Objective(
        name=arguments.objective,
        rate_rps=rate,
        prices=dict(prices),
        most_rent=rent,
        most_power_w=watts,
    )


def _space(arguments: argparse.Namespace, partial: bool, count: int) -> Space:
    """The space that the flags name; without `--devices` there are those of `count` instances."""
    for policy in arguments.policies or ():
        if policy not in POLICIES:
            raise PlannerError(unknown("policy", policy, tuple(POLICIES)))
    units = _units(arguments)
    devices = arguments.devices or {unit.device: count * unit.num_devices for unit in units}
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
    formats = arguments.quantize or ("none",)
    for weights in formats:
        if weights not in QUANTIZE:
            raise PlannerError(unknown("format of weights", weights, QUANTIZE))
    found = []
    for name in given:
        for weights in formats:
            for stages in arguments.stages or (1,):
                form = "" if weights == "none" else weights
                full = name + f"-{form}" * bool(form) + f"-pp{stages}" * (stages > 1)
                try:
                    found.append(unit_of(full, form))
                except ProfileError:
                    if full == name:
                        raise
    kinds, plain = {unit.device for unit in found}, {unit_of(name).device for name in given}
    for kind in arguments.devices or ():
        if kind not in kinds | plain:
            raise PlannerError(unknown("device", kind, sorted(kinds | plain)))
        if kind not in kinds:
            stages = " and these --stages" if arguments.stages else ""
            raise PlannerError(
                f"no profile of {kind} has weights in {' or '.join(formats)}{stages}"
            )
    return found


def _devices(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        kind, _, count = part.strip().rpartition(":")
        if not kind or not (count.isascii() and count.isdigit()) or not int(count[:_DIGITS]):
            raise argparse.ArgumentTypeError(f"expected KIND:N such as a100-80g:4, got {part!r}")
        number = found.get(kind, 0) + int(count[:_DIGITS])
        if len(count) > _DIGITS or number > _MOST_DEVICES:
            raise argparse.ArgumentTypeError(f"at most {_MOST_DEVICES} of a kind, got {part!r}")
        found[kind] = number
    return found


def _caps(text: str) -> Sequence[float]:
    shares = floats(text)
    if any(not 0 < share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"expected shares above 0, at most 1, got {text!r}")
    return shares


def _ints(text: str) -> Sequence[int]:
    numbers = floats(text)
    if any(number != int(number) or number < 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas, got {text!r}")
    return tuple(int(number) for number in numbers)
