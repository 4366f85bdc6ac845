"""The flags that say which workload to build, alike for `llmd simulate` and `llmd bench`."""

import argparse
from pathlib import Path

from daemon.workload.slo import parse_class
from daemon.workload.workload import SloClass, WorkloadError, WorkloadSpec


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Add them, in a group of their own."""
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="requests of an Azure, Mooncake or length file"
    )
    group.add_argument("--workload", default="", metavar="NAME", help=f"or a named one: {_names()}")
    group.add_argument(
        "--requests", type=int, default=0, metavar="N", help="how many; all of a trace, else 1000"
    )
    group.add_argument(
        "--arrivals",
        default="",
        metavar="HOW",
        help="poisson, gamma:CV, closed (all at once), uniform, burst:SIZE or diurnal:DEPTH; "
        "without it a trace keeps its own times, and lengths alone arrive as poisson",
    )
    rate = group.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=float, default=0.0, metavar="R", help="requests/s on average")
    rate.add_argument(
        "--rate-scale", type=float, default=0.0, metavar="X", help="a trace's times, X times faster"
    )
    group.add_argument("--seed", type=int, default=0, metavar="S", help="of lengths and times")
    group.add_argument(
        "--slo",
        type=_slo_class,
        action="append",
        default=[],
        metavar="CLASS",
        help="a class of requests and its promises in seconds, such as chat:0.8:ttft=1:tpot=0.05 "
        "(name, share, promises); once for each class",
    )
    for name, what in (
        ("ttft", "to the first token"),
        ("tpot", "between tokens"),
        ("normalized-latency", "of latency for each output token"),
    ):
        group.add_argument(
            f"--slo-{name}",
            type=float,
            default=0.0,
            metavar="S",
            help=f"seconds {what}, promised to every request",
        )


def workload_spec(arguments: argparse.Namespace) -> WorkloadSpec:
    """What the flags ask for. Raises WorkloadError where they contradict each other."""
    promises = {
        "ttft_s": arguments.slo_ttft,
        "tpot_s": arguments.slo_tpot,
        "normalized_latency_s": arguments.slo_normalized_latency,
    }
    if arguments.slo and any(promises.values()):
        raise WorkloadError("--slo names classes, --slo-ttft and its like promise to all: use one")
    if arguments.trace is None and not arguments.workload:
        raise WorkloadError("which requests? give --trace FILE or --workload NAME")
    return WorkloadSpec(
        trace=arguments.trace,
        name=arguments.workload,
        requests=arguments.requests,
        arrivals=arguments.arrivals,
        rate=arguments.rate,
        rate_scale=arguments.rate_scale,
        seed=arguments.seed,
        classes=tuple(arguments.slo) or (SloClass(**promises),),
    )


def _slo_class(text: str) -> SloClass:
    try:
        return parse_class(text)
    except WorkloadError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _names() -> str:
    from daemon.workload.build import names

    return ", ".join(name for name, _ in names())
