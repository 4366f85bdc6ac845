"""The flags that say which workload to build, alike for `llmd simulate` and `llmd bench`."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from daemon.cli.argument_parser import add_flags, offer
from daemon.cli.defaults import of_default
from daemon.lab.workload.arrivals import PROCESSES
from daemon.lab.workload.build import DEFAULT_REQUESTS, names
from daemon.lab.workload.slo import parse_class
from daemon.lab.workload.workload import SloClass, WorkloadError, WorkloadSpec

_DRAWN = ("requests", "arrivals", "rate", "rate_scale", "seed")
_VALUES = (*_DRAWN, "drift", "shared_prefix", "prefix_groups")


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags, in a group of their own; one that is not given is None and changes nothing."""
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="requests of an Azure, Mooncake or length file"
    )
    workload = group.add_argument("--workload", metavar="NAME", help=f"or a named one: {_names()}")
    offer(workload, [name for name, _ in names()])
    many = f"how many (default: all of a trace, else {DEFAULT_REQUESTS})"
    add_flags(group, ("--requests", int, None, "N", many))
    arrivals = group.add_argument(
        "--arrivals",
        metavar="HOW",
        help="poisson, gamma:CV, closed (all at once), uniform, burst:SIZE or diurnal:DEPTH "
        "(default: a trace's own times, and poisson for lengths alone)",
    )
    offer(arrivals, [how.partition(":")[0] + ":" * (":" in how) for how in PROCESSES])
    needed = "requests/s on average; needed where requests have no times of their own"
    add_flags(
        group.add_mutually_exclusive_group(),
        ("--rate", float, None, "R", needed),
        ("--rate-scale", float, None, "X", "a trace's times, X times faster (default: 1)"),
    )
    spec = WorkloadSpec()
    for flag, kind, metavar, what in (
        ("seed", int, "S", "of lengths and times"),
        ("drift", float, "X", "answers grow along the run, the last to X times its length"),
        ("shared-prefix", int, "N", "tokens with which the prompts of a group begin alike"),
        ("prefix-groups", int, "N", "groups of prompts that begin alike"),
    ):
        default = of_default(getattr(spec, flag.replace("-", "_")))
        add_flags(group, (f"--{flag}", kind, None, metavar, f"{what} {default}"))
    _add_slos(group)


def _add_slos(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo",
        type=_slo_class,
        action="append",
        default=[],
        metavar="CLASS",
        help="a class of requests and its SLOs in seconds, such as chat:0.8:ttft=1:tpot=0.05 "
        "(name, share, SLOs); once for each class",
    )
    for name, what in (
        ("ttft", "to the first token"),
        ("tpot", "between tokens, in the mean"),
        ("gap", "between two tokens, at most"),
        ("normalized-latency", "of latency for each output token"),
    ):
        slo = f"seconds {what}: the SLO of every request"
        add_flags(group, (f"--slo-{name}", float, None, "S", slo))


def workload_spec(arguments: argparse.Namespace, base: WorkloadSpec | None = None) -> WorkloadSpec:
    """The workload of the flags; over a `base`, each flag changes its own value.

    Raises WorkloadError where they contradict each other or name no requests.
    """
    changes: dict[str, Any] = {
        name: getattr(arguments, name) for name in _VALUES if getattr(arguments, name) is not None
    }
    if arguments.trace is not None or arguments.workload is not None:
        changes |= {"trace": arguments.trace, "name": arguments.workload or ""}
    elif base is None:
        raise WorkloadError("which requests? give --trace FILE or --workload NAME")
    # A rate, a scale of the trace's own times and a process instead of them exclude each other:
    # a flag for one of them resets what `base` says of the others.
    if "rate" in changes or changes.get("arrivals"):
        changes.setdefault("rate_scale", 0.0)
    elif "rate_scale" in changes:
        changes = {"rate": 0.0, "arrivals": ""} | changes
    classes = _classes(arguments)
    if classes:
        changes["classes"] = classes
    return msgspec.structs.replace(base or WorkloadSpec(), **changes)


def _classes(arguments: argparse.Namespace) -> tuple[SloClass, ...]:
    """The classes that the flags name, or one class with the --slo-... values, if any."""
    slos = {
        "ttft_s": arguments.slo_ttft,
        "tpot_s": arguments.slo_tpot,
        "gap_s": arguments.slo_gap,
        "normalized_latency_s": arguments.slo_normalized_latency,
    }
    given = {name: value for name, value in slos.items() if value is not None}
    if arguments.slo and given:
        raise WorkloadError("--slo names classes, --slo-ttft and its like are for all: use one")
    return (SloClass(**given),) if given else tuple(arguments.slo)


def _slo_class(text: str) -> SloClass:
    try:
        return parse_class(text)
    except WorkloadError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _names() -> str:
    return ", ".join(name for name, _ in names())
