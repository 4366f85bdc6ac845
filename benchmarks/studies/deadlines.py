"""The deadlines of SLO classes that each policy keeps: orders by deadline beside others.

OPT-13B under DistServe's fit with 12e9 bytes of KV, Poisson arrivals, and classes of equal shares:
an answer of a class is due after --scales times what it takes alone (EcoServe, section 4). Loads
are shares of the rate at which `vllm` keeps the goal of `benchmarks.studies.scheduling`. `untold`
is the same policy where only the report knows the classes. Figures are means over --seeds.

    python -m benchmarks.studies deadlines [--workload sharegpt] [--scales 1.5,3,6]
        [--loads 0.8,1.1] [--predictors oracle,mean] [--requests 400] [--seeds 3] [--capacity RPS]
"""

import argparse
import time
from collections.abc import Sequence
from statistics import fmean

import msgspec

from benchmarks.studies import frame
from benchmarks.studies.lending import REQUESTS, STRIDE
from benchmarks.studies.scheduling import GOAL, KV_BYTES, Way, scenario
from daemon.lab.planner.capacity import find_capacity
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE

BASE = Way("vllm", RECOMPUTE)
ALONE = BASE, Way("sarathi", RECOMPUTE)
TOLD = "gittins", "synced-sd", "synced-sdo", "synced", "packed"
ORDERED = "synced-sdo", "synced", "packed"
"""By deadline; these alone do anything else where nobody tells them the classes."""


def classes(scales: Sequence[float]) -> tuple[SloClass, ...]:
    """One for each scale, in equal shares."""
    return tuple(SloClass(f"{one:g}", 1 / len(scales), scale=one) for one in scales)


def reported(way: Way, workload: WorkloadSpec, told: bool = True) -> Report:
    """One run; if not `told`, the Core knows no deadlines."""
    asked = scenario(way, workload, KV_BYTES, workload.seed)
    if told:
        return frame.simulated(asked).report
    silent = tuple(msgspec.structs.replace(one, scale=0.0) for one in workload.classes)
    spec = msgspec.structs.replace(workload, classes=silent)
    log = run(prepare(msgspec.structs.replace(asked, workload=spec)))
    return report_of(prepare(asked), log)


def tell(name: str, reports: Sequence[Report]) -> None:
    """Print deadlines kept in each class and in all, and means of s/token and of JCT."""
    kept = [fmean(one.slo_by_class[each] for one in reports) for each in reports[0].slo_by_class]
    every = fmean(one.slo_attainment or 0.0 for one in reports)
    shares = (f"{100 * share:.0f} %" for share in (*kept, every))
    token_s = frame.mean(reports, "normalized_latency_s")
    frame.row([name, *shares, f"{token_s:.4f}", f"{frame.mean(reports, 'jct_s'):.1f} s"])


def ways(predictors: Sequence[str]) -> list[tuple[Way, bool]]:
    """All that are compared, and whether they are told the classes."""
    found = [(way, True) for way in ALONE]
    for one in predictors:
        for policy in TOLD:
            way = Way(policy, "", one)
            found += [(way, True)] + ([(way, False)] if policy in ORDERED else [])
    return found


def compare(workload: WorkloadSpec, options: argparse.Namespace) -> None:
    """Every way under the same arrivals."""
    frame.heads("Policy", *(f"{one.name} x" for one in workload.classes), "all", "s/token", "JCT")
    for way, told in ways(frame.listed(options.predictors)):
        each = range(options.seed, options.seed + options.seeds)
        specs = [msgspec.structs.replace(workload, seed=seed) for seed in each]
        reports = [reported(way, spec, told) for spec in specs]
        tell(way.name + ("" if told else ", untold"), reports)


def capacity_rps(name: str, seed: int) -> float:
    """The highest rate at which `vllm` keeps the goal."""
    requests = REQUESTS.get(name, 1200)
    workload = WorkloadSpec(name=name, requests=requests, arrivals="poisson", rate=3.0, seed=seed)
    return find_capacity(scenario(BASE, workload, KV_BYTES, seed), GOAL, stride=STRIDE).rps


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--workload", default="sharegpt")
    parser.add_argument("--scales", default="1.5,3,6", metavar="X,X")
    parser.add_argument("--loads", default="0.8,1.1", metavar="L,L", help="of vllm's capacity")
    parser.add_argument("--predictors", default="oracle,mean", metavar="P,P")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="the first; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--capacity", type=float, default=0.0, help="requests/s; 0: searched for")


def study(options: argparse.Namespace) -> None:
    """Print its tables."""
    begin_s = time.process_time()
    rps = options.capacity or capacity_rps(options.workload, options.seed)
    print(f"{options.workload}: vllm can do {rps:.2f} requests/s", flush=True)
    scales = frame.numbers(options.scales)
    for load in frame.numbers(options.loads):
        print(f"\n{load:g} of it, {load * rps:.2f} requests/s\n")
        workload = WorkloadSpec(
            name=options.workload,
            requests=options.requests,
            arrivals="poisson",
            rate=load * rps,
            classes=classes(scales),
        )
        compare(workload, options)
    print(f"\n{time.process_time() - begin_s:.0f} s of processor", flush=True)
