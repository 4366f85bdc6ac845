"""Latencies and capacities under each policy: preemption at every token, and swapping.

latency    OPT-13B under DistServe's fit, 12e9 bytes of KV, 6,000 requests within 2,048 tokens of
           llmd's own `sharegpt` lengths, or of a file of lengths (--trace), Gamma arrivals of CV 4
           at 2.9 requests/s, several seeds, predictions with lognormal error of sigma 0.5. Each
           policy on the same arrivals; ratios are of the means over the seeds. The same with 50e9
           bytes, where all fits. `vllm` and `sarathi` are as their papers publish them: who gives
           way is computed again. With proactive swapping, llmd's own default, they are `vllm+swap`
           and `sarathi+swap`.
capacity   The highest Poisson rate with a mean of 0.1 s and a P99 of 0.5 s per output token and at
           most 2 % of the asked tokens unserved at the last arrival, 24,000 requests, on the same
           lengths and on `skew`.
counts     What explains the order of the first table, on few requests: answers done by the last
           arrival, how much of the KV is written until then, who waits, how often answers give way.

    python -m benchmarks.studies scheduling [--trace FILE] [--seeds 3] [--capacity] [--out FILE]
    python -m benchmarks.studies scheduling --counts 2000 [--only WORD]
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.studies import frame
from benchmarks.studies.frame import mean
from daemon.config.schema import SchedulerConfig
from daemon.lab.planner.capacity import find_capacity
from daemon.lab.planner.goal import Goal
from daemon.lab.report.report import Report
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE

PROFILE = "opt-13b@a100-80g"
KV_BYTES, PLENTY_BYTES = 12e9, 50e9
HOST_POOLS = 4.0  # host memory to swap to, as the daemon has it beside a pool of KV
MAX_LEN = 2048
GOAL = Goal(normalized_latency_s=0.1, p99_normalized_latency_s=0.5)


PUBLISHED = ("vllm", "sarathi")
"""Baselines of papers, where who gives way is computed again; llmd's own default swaps."""


PAUSE_S = SchedulerConfig().max_pause_s
"""As a daemon has it."""


class Way(NamedTuple):
    """A policy, what becomes of its victims, and what it is told of answers' lengths."""

    policy: str
    swap: str = ""
    predictor: str = "none"
    max_pause_s: float = PAUSE_S

    @property
    def name(self) -> str:
        """As the table calls it."""
        told = f" {self.predictor}" if self.predictor != "none" else ""
        swap = f" {self.swap}" if self.swap else ""
        if self.policy in PUBLISHED:
            swap = "" if self.swap == RECOMPUTE else swap or "+swap"
        pause = f":{self.max_pause_s:g}" if self.max_pause_s != PAUSE_S else ""
        return f"{self.policy}{pause}{swap}{told}"


NOISY = "noisy:0.5"
WAYS = (
    Way("vllm", RECOMPUTE),
    Way("vllm"),
    Way("sarathi", RECOMPUTE),
    Way("sarathi"),
    Way("mlfq"),
    Way("mlfq", "reactive"),
    Way("mlfq", "recompute"),
    Way("mlfq", "defer"),
    Way("sjf", "", NOISY),
    Way("speculative", "", NOISY),
    Way("speculative", "reactive", NOISY),
    Way("speculative", "recompute", NOISY),
    Way("speculative", "defer", NOISY),
    Way("speculative", "", "none"),
    Way("speculative", "", "adversary"),
    Way("gittins", "", NOISY),
    Way("gittins", "", "features"),
    Way("gittins", "", "mean"),
    Way("gittins", "", "none"),
    Way("gittins", "", "adversary"),
    Way("mlfq-q1"),
    Way("speculative-queues", "", NOISY),
    Way("packed", "", NOISY),
    Way("synced", "", NOISY),
    Way("synced", "", "oracle"),
    Way("srtf", "", "oracle"),
)


def scenario(way: Way, workload: WorkloadSpec, kv_bytes: float, seed: int) -> Scenario:
    """One run."""
    return Scenario(
        workload=workload,
        instance=(
            InstanceGroup(profile=PROFILE, kv_bytes=kv_bytes, host_bytes=HOST_POOLS * kv_bytes),
        ),
        policy=way.policy,
        predictor=way.predictor,
        seed=seed,
        limits=ScenarioLimits(max_len=MAX_LEN, swap=way.swap, max_pause_s=way.max_pause_s),
    )


def lengths(trace: Path | None, requests: int) -> WorkloadSpec:
    """Requests of a file's lengths, or of llmd's own."""
    return WorkloadSpec(trace=trace, name="" if trace else "sharegpt", requests=requests)


def one_report(way: Way, spec: WorkloadSpec, kv_bytes: float, rate: float, seed: int) -> Report:
    """The report of one way under one seed."""
    workload = replace(spec, arrivals="gamma:4", rate=rate, seed=seed)
    return frame.simulated(scenario(way, workload, kv_bytes, seed)).report


def latency(
    spec: WorkloadSpec, ways: Sequence[Way], seeds: int, kv_bytes: float, rate: float
) -> dict[Way, list[Report]]:
    """Every way under every seed, on all cores."""
    jobs = [(way, spec, kv_bytes, rate, seed) for way in ways for seed in range(seeds)]
    with ProcessPoolExecutor() as pool:
        reports = list(pool.map(one_report, *zip(*jobs, strict=True)))
    return {way: reports[row * seeds : (row + 1) * seeds] for row, way in enumerate(ways)}


def table(found: dict[Way, list[Report]]) -> list[str]:
    """A row for each way: normalised latency and its ratios, JCT, TTFT, moves."""
    base = {name: mean(found[Way(name, RECOMPUTE)], "normalized_latency_s") for name in PUBLISHED}
    lines = [
        f"{'policy':<34}{'s/token':>9}{'vs vllm':>9}{'vs sar.':>9}{'spread':>16}{'JCT':>8}"
        f"{'P99 JCT':>9}{'TTFT':>8}{'swaps':>8}{'recomp.':>9}{'stall':>8}"
    ]
    for way, reports in found.items():
        each = [report.normalized_latency_s.mean or 0.0 for report in reports]
        value = statistics.fmean(each)
        stall = mean(reports, "swap_s") / mean(reports, "jct_s")
        ratios = f"{value / base['vllm']:>9.2f}{value / base['sarathi']:>9.2f}"
        lines.append(
            f"{way.name:<34}{value:>9.4f}{ratios}"
            f"{f'{min(each):.3f}-{max(each):.3f}':>16}{mean(reports, 'jct_s'):>8.1f}"
            f"{mean(reports, 'jct_s', 'p99'):>9.1f}{mean(reports, 'ttft_s'):>8.2f}"
            f"{statistics.fmean(r.swaps for r in reports):>8.0f}"
            f"{statistics.fmean(r.recomputed_tokens for r in reports):>9.0f}{100 * stall:>7.2f}%"
        )
    return lines


COUNT_HEADS = (
    *("Policy", "s/token", "JCT", "queued", "done by the last arrival", "KV written"),
    *("running", "waiting", "preemptions", "recomputed", "loans"),
)


def counts(way: Way, spec: WorkloadSpec, rate: float) -> list[str]:
    """A row of counts under the first seed, up to the last arrival where they are means."""
    workload = replace(spec, arrivals="gamma:4", rate=rate, seed=0)
    report, log = frame.simulated(scenario(way, workload, KV_BYTES, 0))
    requests, instance = log.requests, log.instances[0]
    last_s = float(requests.arrival_s[-1])
    spans_s = np.diff(np.append(instance.sample_s, last_s)).clip(0.0)
    before = np.array(instance.sample_s) < last_s
    samples = instance.sample_written, instance.sample_running, instance.sample_waiting
    written, running, waiting = (
        float(np.average(np.array(sample)[before], weights=spans_s[before])) for sample in samples
    )
    return [
        way.name,
        f"{report.normalized_latency_s.mean:.3f}",
        f"{report.jct_s.mean:.1f} s",
        f"{np.mean(requests.started_s - requests.arrival_s):.1f} s",
        f"{100 * np.mean(requests.last_s < last_s):.0f} %",
        f"{written:.2f}",
        f"{running:.0f}",
        f"{waiting:.0f}",
        f"{instance.preemptions:,}",
        f"{report.recomputed_tokens:,}",
        f"{report.loans:,}",
    ]


CAPACITY_WAYS = (
    Way("vllm", RECOMPUTE),
    Way("sarathi", RECOMPUTE),
    Way("sarathi"),
    Way("mlfq"),
    Way("speculative", "", NOISY),
    Way("srtf", "", "oracle"),
)


def capacity_of(way: Way, workload: WorkloadSpec) -> float:
    """The highest rate within the goal."""
    found = find_capacity(scenario(way, workload, KV_BYTES, 0), GOAL)
    return found.rps


def capacities(trace: Path | None, requests: int) -> dict[str, dict[str, float]]:
    """By workload and way."""
    spec = replace(lengths(trace, requests), arrivals="poisson", rate=3.0)
    workloads = {"sharegpt": spec, "skew": replace(spec, name="skew")}
    jobs = [(way, name) for name in workloads for way in CAPACITY_WAYS]
    with ProcessPoolExecutor() as pool:
        rates = pool.map(capacity_of, (way for way, _ in jobs), (workloads[n] for _, n in jobs))
        found: dict[str, dict[str, float]] = {name: {} for name in workloads}
        for (way, name), rate in zip(jobs, rates, strict=True):
            found[name][way.name] = rate
    return found


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--trace", type=Path, help="a file of lengths (default: llmd's own)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2.9)
    parser.add_argument("--only", default="", help="ways whose names contain this, and baselines")
    parser.add_argument("--plenty", action="store_true", help="with 50e9 bytes of KV too")
    parser.add_argument("--capacity", action="store_true")
    parser.add_argument("--requests", type=int, default=24_000, help="of the capacity search")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--counts", type=int, default=0, metavar="N", help="of so many requests")


def study(arguments: argparse.Namespace) -> None:
    """Print its tables."""
    kept = [w for w in WAYS if arguments.only in w.name or w.name in PUBLISHED]
    if arguments.counts:
        spec = lengths(arguments.trace, arguments.counts)
        frame.heads(*COUNT_HEADS)
        for way in kept:
            frame.row(counts(way, spec, arguments.rate))
        return
    results: dict[str, object] = {}
    spec = lengths(arguments.trace, 6000)
    for kv_bytes in (KV_BYTES, PLENTY_BYTES) if arguments.plenty else (KV_BYTES,):
        found = latency(spec, kept, arguments.seeds, kv_bytes, arguments.rate)
        setting = f"{kv_bytes / 1e9:g}e9 bytes of KV"
        print(f"{setting}, {arguments.rate} requests/s, {arguments.seeds} seeds")
        print("\n".join(table(found)), flush=True)
        results[setting] = {
            way.name: [report.normalized_latency_s.mean for report in reports]
            for way, reports in found.items()
        }
    if arguments.capacity:
        rates = capacities(arguments.trace, arguments.requests)
        for name, by_way in rates.items():
            for way_name, rate in by_way.items():
                told = f"{rate / by_way['vllm']:.2f}x vllm, {rate / by_way['sarathi']:.2f}x sarathi"
                print(f"capacity, {name}: {way_name:<26}{rate:>8.3f} requests/s  {told}")
        results["capacity_rps"] = rates
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
