"""Prefill and decode apart on a real daemon, beside two mixed workers and one with both cores.

The embedded model on this machine's CPU: ShareGPT-like lengths within 1,024 tokens, Poisson
arrivals at a share of what two mixed workers serve when all requests are there at once. Each round
has arrivals and lengths of its own and runs every way once, one after another, each on a fresh
daemon. Two workers have half of the cores each; the daemon, its API and the client share them.

A request meets its promise when its TTFT and its TPOT are both within it; goodput counts these.
The promises are multiples of what `one` with the middle chunk does at rest: --slow times.

    python -m benchmarks.roles_live [--rounds 3] [--requests 60] [--load 0.7] [--chunks 32 128 512]
"""

import argparse
import itertools
import json
import statistics
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.live import bench, daemon
from benchmarks.peers.machine import describe
from daemon.lab.bench.bench import Measured
from daemon.lab.workload.workload import WorkloadSpec

MAX_LEN, KV_BLOCKS = 1024, 1200
WAYS = {
    "roles": ["--instance", "cpu:prefill", "cpu:decode"],
    "mixed": ["--instance", "cpu", "cpu"],
    "one": ["--instance", "cpu"],
}


def measured(way: str, chunk: int, policy: str, spec: WorkloadSpec) -> Measured:
    """What clients of a fresh daemon saw."""
    flags = [*WAYS[way], "--policy", policy, "--kv-blocks", str(KV_BLOCKS)]
    flags += ["--set", f"scheduler.prefill_chunk={chunk}", "--set", f"model.max_len={MAX_LEN}"]
    with (
        tempfile.TemporaryDirectory(prefix="llmd-roles-") as name,
        daemon(flags, Path(name)) as url,
    ):
        return bench(url, spec, MAX_LEN)


def shape(found: Measured, ttft_s: float, tpot_s: float) -> dict[str, float]:
    """The figures of one run under these promises."""
    report, run = found.report, found.run.requests
    first_s = run.first_s - run.arrival_s
    span_s = (run.last_s - run.first_s) / np.maximum(1, run.output_tokens - 1)
    kept = (first_s <= ttft_s) & (span_s <= tpot_s)
    return {
        "goodput_rps": float(np.count_nonzero(kept)) / report.virtual_s,
        "attainment": float(np.mean(kept)),
        "ttft_p99_s": float(report.ttft_s.p99 or 0.0),
        "tpot_mean_s": float(report.tpot_s.mean or 0.0),
        "tpot_p99_s": float(report.tpot_s.p99 or 0.0),
        "gap_p99_s": float(report.longest_gap_s.p99 or 0.0),
        "tokens_per_s": report.output_tokens_per_s,
        "failed": float(report.requests - report.finished),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Prefill and decode apart, beside mixed workers.")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--load", type=float, default=0.7, help="default: %(default)s")
    parser.add_argument("--chunks", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--policy", default="sarathi", help="default: %(default)s")
    parser.add_argument("--slow", type=float, default=4.0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="a JSON file")
    asked = parser.parse_args()
    middle = sorted(asked.chunks)[len(asked.chunks) // 2]
    alone = WorkloadSpec(name="sharegpt", requests=8, arrivals="poisson", rate=0.1, seed=7)
    rest = measured("one", middle, asked.policy, alone).report
    promise = asked.slow * float(rest.ttft_s.p99 or 1.0), asked.slow * float(rest.tpot_s.p99 or 1.0)
    closed = msgspec.structs.replace(alone, requests=asked.requests, arrivals="closed", rate=0.0)
    rate = asked.load * measured("mixed", middle, asked.policy, closed).report.throughput_rps
    print(f"{describe()}; {rate:.2f} requests/s; TTFT {promise[0]:.2f} s, TPOT {promise[1]:.3f} s")
    cells = list(itertools.product(WAYS, asked.chunks))
    runs: dict[str, list[dict[str, float]]] = {f"{way} {chunk}": [] for way, chunk in cells}
    for number in range(asked.rounds):
        spec = msgspec.structs.replace(alone, requests=asked.requests, rate=rate, seed=100 + number)
        for way, chunk in cells:
            found = shape(measured(way, chunk, asked.policy, spec), *promise)
            runs[f"{way} {chunk}"].append(found)
            print(number + 1, way, chunk, {k: round(v, 3) for k, v in found.items()}, flush=True)
    for name, rows in runs.items():
        means = {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
        spread = (
            f"{min(r['tpot_p99_s'] for r in rows):.3f}-{max(r['tpot_p99_s'] for r in rows):.3f}"
        )
        told = ", ".join(f"{key} {value:.3g}" for key, value in means.items())
        print(f"{name:12} {told} (TPOT p99 {spread})")
    if asked.out:
        told = {"machine": describe(), "rate_rps": rate, "promise_s": promise, "runs": runs}
        asked.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
