"""Roles against mixed instances: light and heavy prompts and answers (TetriInfer), and ShareGPT.

    python -m benchmarks.studies roles [--requests 300] [--share 0.7] [--profile NAME]

Equally many devices on both sides: two or four instances, half of which compute prompts and half
answers, against all of them mixed. Requests come at random (Poisson), at a share of the rate at
which the mixed ones finish when all is there at once. Resource time is the time for which devices
computed. Numbers above 1 in the last three columns are what roles cost, those below what they gain.
"""

import argparse

from benchmarks.studies import frame
from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.simulator.scenario import InstanceGroup, Scenario
from daemon.lab.workload.workload import WorkloadSpec

MIXES = ("lpld", "lphd", "hpld", "hphd", "sharegpt")


def simulated(profile: str, roles: tuple[str, ...], workload: WorkloadSpec) -> frame.Run:
    """One run; a role for each instance."""
    scenario = Scenario(
        workload=workload,
        instance=tuple(InstanceGroup(profile=profile, role=role) for role in roles),
        predictor="none",
    )
    return frame.simulated(scenario)


def line(name: str, report: Report, log: RunLog, base: list[float]) -> list[float]:
    """Print a row; its TTFT, JCT and resource time, which `base` has of the mixed ones."""
    busy_s = sum(one.busy_s for one in log.instances)
    values = [report.ttft_s.mean or 0.0, report.jct_s.mean or 0.0, busy_s]
    ratios = [f"{one / other:.2f}" for one, other in zip(values, base or values, strict=True)]
    p99_s = (1e3 * (each.p99 or 0.0) for each in (report.ttft_s, report.tbt_s))
    cells = [name, f"{1e3 * values[0]:,.0f}", *(f"{one:,.0f}" for one in p99_s)]
    cells += [f"{values[1]:.2f}", f"{busy_s:,.0f}", f"{log.handoffs}", *ratios]
    frame.row(cells)
    return values


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--share", type=float, default=0.7, help="of the mixed ones' rate")
    parser.add_argument("--profile", default="opt-13b@a100-80g")


def study(arguments: argparse.Namespace) -> None:
    """Print its tables."""
    frame.heads(
        *("Mix, instances", "TTFT, ms", "P99", "TBT P99, ms", "JCT, s", "Resource, s", "Handoffs"),
        *("TTFT", "JCT", "Resource"),
    )
    for mix in MIXES:
        for half in (1, 2):
            closed = WorkloadSpec(name=mix, requests=arguments.requests, arrivals="closed")
            mixed = ("mixed",) * (2 * half)
            full, _ = simulated(arguments.profile, mixed, closed)
            rate = arguments.share * full.throughput_rps
            workload = WorkloadSpec(name=mix, requests=arguments.requests, rate=rate)
            base = line(
                f"{mix}, {2 * half} mixed, {rate:.1f}/s",
                *simulated(arguments.profile, mixed, workload),
                [],
            )
            apart = ("prefill",) * half + ("decode",) * half
            line(
                f"{mix}, {half} prefill, {half} decode",
                *simulated(arguments.profile, apart, workload),
                base,
            )
