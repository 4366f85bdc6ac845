"""Memory lent until it is needed: EcoServe's ablations beside other policies, in the simulator.

OPT-13B under DistServe's fit with 12e9 bytes of KV, as in EcoServe's section 2; lengths as its
traces have them, and `skew`. Either all requests are there at once (closed), or they arrive as a
Poisson process (--rate). `sarathi` and `vllm` are as published: who gives way is computed again.

--scale     Answers are due after so many times what they take alone (EcoServe, section 4: 2).
--capacity  The highest Poisson rate at which the goal of `benchmarks.studies.scheduling` holds, the
            mean over --seeds, and its ratio to that of `sarathi`, and of `gittins` with the same
            predictions. Then pauses and tails at 0.9 of what the first `gittins` can do (or
            `sarathi`, without it), beside the bounds that the default has to keep
            (`benchmarks.frontier`).

    python -m benchmarks.studies lending [--workloads sharegpt,skew,alpaca,bookcorpus]
        [--requests 600] [--predictors oracle,noisy:0.3] [--rate 3.0 [--scale 2]]
        [--only synced,packed] [--seed 0]
    python -m benchmarks.studies lending --capacity [--predictors mean] [--seeds 2] [--width 0.02]
"""

import argparse
import time
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from benchmarks.frontier.measures import CellFigures, figures
from benchmarks.frontier.tables import table
from benchmarks.frontier.ways import BASELINES
from benchmarks.studies import frame
from benchmarks.studies.scheduling import GOAL, KV_BYTES, Way, scenario
from daemon.lab.planner.capacity import find_capacity
from daemon.lab.report.measures import completion_window
from daemon.lab.simulator.scenario import Scenario
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.decode_admission import GREEDY, RESERVE_PEAK


class Row(NamedTuple):
    """A way, and what it leaves room for."""

    way: Way
    rule: str = GREEDY

    @property
    def name(self) -> str:
        """As the table calls it."""
        return self.way.name + ("" if self.rule == GREEDY else f", {self.rule}")


ALONE = (
    Row(Way("sarathi", RECOMPUTE)),
    Row(Way("vllm", RECOMPUTE)),
    Row(Way("sarathi")),
    Row(Way("orca")),
)
PREDICTED = ("synced-d", "synced-sd", "synced-sdo", "synced", "packed")


def told(predictor: str) -> tuple[Row, ...]:
    """The default's order without and with room for the peak, and the same first come first served,
    all told the same.
    """
    gittins, sarathi = Way("gittins", "", predictor), Way("sarathi", RECOMPUTE, predictor)
    return Row(gittins), Row(gittins, RESERVE_PEAK), Row(sarathi, RESERVE_PEAK)


def rows(predictors: Sequence[str]) -> list[Row]:
    """All that are compared: those that ask for no prediction, then the others."""
    found = list(ALONE)
    for one in predictors:
        found += [Row(Way(policy, "", one)) for policy in PREDICTED]
        found += told(one)
    return found


def _is_asked(row: Row, only: str) -> bool:
    """Whether `--only` wants this row."""
    return any(part in row.name for part in only.split(","))


def setting(row: Row, workload: WorkloadSpec) -> Scenario:
    """One run."""
    asked = scenario(row.way, workload, KV_BYTES, workload.seed)
    limits = msgspec.structs.replace(asked.limits, decode_admission=row.rule)
    return msgspec.structs.replace(asked, limits=limits)


def measured(row: Row, workload: WorkloadSpec) -> list[float]:
    """Requests/s from 10 % to 90 % of completions, seconds until the last one, s/token, mean JCT,
    P99 of the longest gap, KV allocated and written, requests preempted after their first token,
    recomputed tokens, loans for 100 requests, the share that kept its SLO.
    """
    report, log = frame.simulated(setting(row, workload))
    window = completion_window(log.requests)
    assert window is not None, "none finished"
    begin_s, end_s = window
    inside = (log.requests.last_s > begin_s) & (log.requests.last_s <= end_s)
    return [
        float(inside.sum()) / (end_s - begin_s),
        float(log.requests.last_s.max()),
        report.normalized_latency_s.mean or 0.0,
        report.jct_s.mean or 0.0,
        report.longest_gap_s.p99 or 0.0,
        report.kv_allocated_fraction or 0.0,
        report.kv_written_fraction or 0.0,
        float(log.requests.preempted_after_first.mean()),
        float(report.recomputed_tokens or 0),
        100.0 * (report.loans or 0) / len(log.requests),
        report.slo_attainment or 0.0,
    ]


HEADS = "Policy", "req/s", "to sarathi", "all done", "to sarathi", "s/token", "JCT", "P99 gap"
MORE_HEADS = "allocated", "written", "preempted", "recomputed", "loans/100", "SLO kept"


def tell(name: str, found: Sequence[float], base: Sequence[float]) -> None:
    """Print a row of the table; `base` is what was measured of `sarathi`."""
    rate, end_s, token_s, jct_s, gap_s, allocated, written, preempted, again, loans, kept = found
    cells = [name, f"{rate:.2f}", f"{rate / base[0]:.2f}", f"{end_s:.0f} s"]
    cells += [f"{base[1] / end_s:.2f}", f"{token_s:.4f}", f"{jct_s:.1f} s", f"{gap_s:.2f} s"]
    cells += [f"{allocated:.2f}", f"{written:.2f}", f"{100 * preempted:.1f} %", f"{again:,.0f}"]
    frame.row([*cells, f"{loans:.0f}", f"{100 * kept:.0f} %"])


def compare(workload: WorkloadSpec, options: argparse.Namespace) -> None:
    """Every way under the same arrivals."""
    frame.heads(*HEADS, *MORE_HEADS)
    base: list[float] = []
    for number, row in enumerate(rows(frame.listed(options.predictors))):
        if number == 0 or _is_asked(row, options.only):
            found = measured(row, workload)
            base = base or found
            tell(row.name, found, base)


# Capacity

REQUESTS = {"sharegpt": 4800, "skew": 4800, "alpaca": 20000, "bookcorpus": 1600}
"""About 100 times those that run together: what still runs at the last arrival counts as unserved,
and would be the limit where there are fewer."""

STRIDE = 1.2
"""Rates near what `sarathi` does with all there at once: few are tried."""

LOAD = 0.9


def capacity_rows(predictors: Sequence[str], only: str) -> list[Row]:
    """Those whose capacity is asked, both baselines first."""
    lending = "synced", "packed"
    asked = (
        row
        for one in predictors
        for row in (*told(one), *(Row(Way(policy, "", one)) for policy in lending))
    )
    return [*map(Row, BASELINES), *(row for row in asked if _is_asked(row, only))]


def capacities(row: Row, workload: WorkloadSpec, options: argparse.Namespace) -> list[float]:
    """The highest rates at which the goal holds, a seed each."""
    rates = []
    for seed in range(options.seed, options.seed + options.seeds):
        asked = setting(row, msgspec.structs.replace(workload, seed=seed))
        rates.append(find_capacity(asked, GOAL, options.width, stride=STRIDE).rps)
    return rates


def tails(chosen: Sequence[Row], workload: WorkloadSpec, options: argparse.Namespace) -> None:
    """Pauses and tails of each way at one rate."""
    begin_s = time.process_time()
    ways = []
    for row in chosen:
        reports = []
        for seed in range(options.seed, options.seed + options.seeds):
            asked = setting(row, msgspec.structs.replace(workload, seed=seed))
            reports.append(frame.simulated(asked).report)
        ways.append(figures(row.name, reports))
    spent_s = time.process_time() - begin_s
    done = CellFigures(workload.name, LOAD, reports[0].label, [], spent_s, ways)
    print(f"\n{done.label}; ratios to the better baseline, ! over the bound")
    print("\n".join(table(done)), flush=True)


def search(workload: WorkloadSpec, options: argparse.Namespace) -> None:
    """Every way's capacity, and its tails below it."""
    begin_s = time.process_time()
    chosen = capacity_rows(frame.listed(options.predictors), options.only)
    first_rps = measured(chosen[0], msgspec.structs.replace(workload, requests=600))[0]
    workload = msgspec.structs.replace(workload, arrivals="poisson", rate=first_rps)
    frame.heads("Policy", "Capacity, req/s", "of each seed", "to sarathi", "to gittins")
    found: dict[str, float] = {}
    for row in chosen:
        rates = capacities(row, workload, options)
        found[row.name] = mean = fmean(rates)
        each = ", ".join(f"{rate:.2f}" for rate in rates)
        like = found.get(Way("gittins", "", row.way.predictor).name)
        beside = f"{mean / like:.3f}" if like else "-"
        base = found[chosen[0].name]
        frame.row([row.name, f"{mean:.2f}", each, f"{mean / base:.2f}", beside])
    at = next((row for row in chosen if row.way.policy == "gittins"), chosen[0])
    rate = LOAD * found[at.name]
    tails(chosen, msgspec.structs.replace(workload, rate=rate), options)
    print(f"{time.process_time() - begin_s:.0f} s of processor", flush=True)


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--workloads", default="sharegpt,skew,alpaca,bookcorpus", metavar="W,W")
    parser.add_argument("--requests", type=int, help="default: 600; with --capacity by workload")
    parser.add_argument("--predictors", default="oracle,noisy:0.3", metavar="P,P")
    parser.add_argument("--rate", type=float, default=0.0, help="requests/s; 0: all at once")
    parser.add_argument("--scale", type=float, default=0.0, help="of the SLO; 0: none")
    parser.add_argument(
        "--only", default="", metavar="W,W", help="ways with this in their names, and baselines"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first; default: %(default)s")
    parser.add_argument("--capacity", action="store_true", help="search for the highest rates")
    parser.add_argument("--seeds", type=int, default=1, help="of --capacity; default: %(default)s")
    parser.add_argument("--width", type=float, default=0.03, help="likewise, of the last bracket")


def study(options: argparse.Namespace) -> None:
    """Print its tables."""
    for name in frame.listed(options.workloads):
        requests = options.requests or (REQUESTS.get(name, 1200) if options.capacity else 600)
        workload = WorkloadSpec(name=name, requests=requests, arrivals="closed", seed=options.seed)
        print(f"\n{name}\n")
        if options.capacity:
            search(workload, options)
            continue
        if options.scale:
            scaled = SloClass("all", 1.0, scale=options.scale)
            workload = msgspec.structs.replace(workload, classes=(scaled,))
        if options.rate:
            workload = msgspec.structs.replace(workload, arrivals="poisson", rate=options.rate)
        compare(workload, options)
