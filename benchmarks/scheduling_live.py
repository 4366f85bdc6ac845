"""The policies on a real daemon: the embedded model on this machine's CPU, with little KV memory.

The shapes of benchmarks.scheduling scaled down: ShareGPT-like lengths within 512 tokens, a pool of
as many blocks as hold a few of them, Gamma arrivals of CV 4 at a share of what `sarathi` (as
published: who gives way is computed again) serves
when all requests are there at once (found first). Each round runs every way once, one after
another, so that a slow hour of the machine meets all of them.

Clients ask for as many tokens as they get. Only `srtf` orders by that: it is the oracle here;
`speculative` is told nothing, and expects as if answers had no limit until it is reached, or, with
`noisy:0.5`, the truth with lognormal error.

    python -m benchmarks.scheduling_live [--rounds 3] [--requests 100] [--load 0.9] [--out FILE]
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.live import bench, daemon
from benchmarks.scheduling import NOISY, Way
from daemon.lab.report.report import Report
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE

MAX_LEN = 512
WAYS = (
    Way("vllm", RECOMPUTE),
    Way("sarathi", RECOMPUTE),
    Way("sarathi"),
    Way("mlfq"),
    Way("mlfq", "reactive"),
    Way("mlfq", "recompute"),
    Way("mlfq", "defer"),
    Way("speculative"),
    Way("speculative", predictor=NOISY),
    Way("srtf"),
)
MEASURES = ("normalized_latency_s", "ttft_s", "jct_s")


def measured(way: Way, spec: WorkloadSpec, kv_blocks: int) -> Report:
    """What clients of a fresh daemon saw."""
    flags = ["--policy", way.policy, "--kv-blocks", str(kv_blocks), "--predictor", way.predictor]
    flags += ["--set", f"model.max_len={MAX_LEN}", "--set", "scheduler.prefix_cache=false"]
    if way.swap:
        flags += ["--set", f'memory.swap="{way.swap}"']
    with (
        tempfile.TemporaryDirectory(prefix="llmd-live-") as name,
        daemon(flags, Path(name)) as url,
    ):
        return bench(url, spec, MAX_LEN).report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--kv-blocks", type=int, default=100)
    parser.add_argument("--ways", default="", help="names with commas; all without it")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chosen = arguments.ways.split(",") if arguments.ways else [way.name for way in WAYS]
    unknown = set(chosen) - {way.name for way in WAYS}
    if unknown:
        raise SystemExit(f"no such ways: {', '.join(sorted(unknown))}")
    ways = [way for way in WAYS if way.name in chosen]
    closed = WorkloadSpec(name="sharegpt", requests=arguments.requests, arrivals="closed", seed=7)
    rate = (
        arguments.load
        * measured(Way("sarathi", RECOMPUTE), closed, arguments.kv_blocks).throughput_rps
    )
    print(f"rate {rate:.2f} requests/s: {arguments.load:.0%} of sarathi's closed throughput")
    found: dict[str, list[Report]] = {way.name: [] for way in ways}
    for turn in range(arguments.rounds):
        for way in ways:
            spec = WorkloadSpec(
                name="sharegpt",
                requests=arguments.requests,
                arrivals="gamma:4",
                rate=rate,
                seed=turn,
            )
            found[way.name].append(measured(way, spec, arguments.kv_blocks))
            print(f"round {turn + 1}: {way.name}", file=sys.stderr, flush=True)
    print("\n".join(table(found)))
    if arguments.out is not None:
        plain = {
            name: [
                {measure: getattr(report, measure).mean for measure in MEASURES}
                for report in reports
            ]
            for name, reports in found.items()
        }
        arguments.out.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


def table(found: dict[str, list[Report]]) -> list[str]:
    """A row for each way: the mean of its rounds, and its ratio to `sarathi` round by round."""
    lines = [f"{'policy':<24}{'s/token':>9}{'of sarathi':>12}{'(rounds)':>16}{'TTFT':>8}{'JCT':>8}"]
    lines[0] += f"{'P99 JCT':>9}{'failed':>8}"
    base = found.get("sarathi", [])
    for name, reports in found.items():
        mean = {m: statistics.fmean(getattr(r, m).mean or 0.0 for r in reports) for m in MEASURES}
        ratios = [
            (one.normalized_latency_s.mean or 0.0) / (other.normalized_latency_s.mean or 1.0)
            for one, other in zip(reports, base, strict=False)
        ]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else "-"
        ratio = f"{statistics.fmean(ratios):.2f}" if ratios else "-"
        p99 = statistics.fmean(report.jct_s.p99 or 0.0 for report in reports)
        failed = sum(report.requests - report.finished for report in reports)
        lines.append(
            f"{name:<24}{mean['normalized_latency_s']:>9.4f}{ratio:>12}{spread:>16}"
            f"{mean['ttft_s']:>8.2f}{mean['jct_s']:>8.1f}{p99:>9.1f}{failed:>8}"
        )
    return lines


if __name__ == "__main__":
    main()
