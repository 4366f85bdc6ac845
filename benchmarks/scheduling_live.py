"""The policies on a real daemon: the embedded model on this machine's CPU, with little KV memory.

The shapes of benchmarks.scheduling scaled down: ShareGPT-like lengths within 96 tokens (some 20 in
and 35 out), of which a pool of --kv-blocks holds about nine; Gamma arrivals of CV 4 at a share of
what `sarathi` (as published: who gives way is computed again) serves when all requests are there at
once. That is found first, unless --rate says it. Draws are stretched until their mean rate is what
was asked. Each round has arrivals and lengths of its own and runs every way once, one after
another, each on a fresh daemon, so that a slow hour of the machine meets all of them.

Clients ask for as many tokens as they get. Only `srtf` orders by that: it is the oracle here;
`speculative` and `gittins` are told nothing or, with `noisy:0.5`, the truth with lognormal error.

    python -m benchmarks.scheduling_live [--rounds 4] [--requests 100] [--load 1.1] [--out FILE]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.live import bench, daemon
from benchmarks.peers.machine import describe, vectors
from benchmarks.scheduling import NOISY, Way
from daemon.lab.report.report import Report
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE

WORKLOAD, MAX_LEN = "sharegpt", 96
ARRIVALS = "gamma:4"
BASE = Way("sarathi", RECOMPUTE)
WAYS = {
    way.name: way
    for way in (
        Way("vllm", RECOMPUTE),
        BASE,
        Way("sarathi"),
        Way("mlfq"),
        Way("mlfq", "reactive"),
        Way("mlfq", "recompute"),
        Way("mlfq", "defer"),
        Way("speculative"),
        Way("speculative", predictor=NOISY),
        Way("gittins"),
        Way("gittins", predictor="mean"),
        Way("gittins", predictor=NOISY),
        Way("srtf"),
    )
}
USUAL = "sarathi,mlfq,speculative,gittins"
MEASURES = {
    "s/token": ("normalized_latency_s", "mean"),
    "JCT": ("jct_s", "mean"),
    "P99 JCT": ("jct_s", "p99"),
    "P99 TTFT": ("ttft_s", "p99"),
    "P99 gap": ("longest_gap_s", "p99"),
    "longest": ("longest_gap_s", "max"),
}
"""Measures of a report, by column."""

Found = Mapping[str, list[Report]]  # by way, a report for each round


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


def closed_rate(requests: int, kv_blocks: int) -> float:
    """Requests/s of `sarathi` where all are there at once."""
    spec = WorkloadSpec(name=WORKLOAD, requests=requests, arrivals="closed", seed=7)
    return measured(BASE, spec, kv_blocks).throughput_rps


def arriving(requests: int, rate: float, seed: int) -> WorkloadSpec:
    """Arrivals whose draw, and not only its mean, comes at this rate: times go as 1 / rate."""
    drawn = WorkloadSpec(name=WORKLOAD, requests=requests, arrivals=ARRIVALS, rate=rate, seed=seed)
    took_s = float(build(drawn, MAX_LEN).arrival_s[-1])
    return msgspec.structs.replace(drawn, rate=rate * took_s / (requests / rate))


def rounds(
    ways: Sequence[Way], specs: Sequence[WorkloadSpec], kv_blocks: int
) -> dict[str, list[Report]]:
    """Every way once in each round."""
    found: dict[str, list[Report]] = {way.name: [] for way in ways}
    for number, spec in enumerate(specs):
        for way in ways:
            begin_s = time.monotonic()
            found[way.name].append(measured(way, spec, kv_blocks))
            took_s = time.monotonic() - begin_s
            print(f"round {number + 1}, {way.name}: {took_s:.0f} s with the start", flush=True)
    return found


def value(report: Report, title: str) -> float:
    """A measure of a report; NaN where no request has it."""
    field, stat = MEASURES[title]
    found = getattr(getattr(report, field), stat)
    return float("nan") if found is None else float(found)


def table(found: Found) -> Iterator[str]:
    """Two rows for each way: means over the rounds, then ratios to `sarathi` round by round; both
    with the least and the most.
    """
    yield f"{'policy':<24}" + "".join(f"{title:>24}" for title in MEASURES) + f"{'failed':>8}"
    for name, reports in found.items():
        failed = sum(report.requests - report.finished for report in reports)
        each = {title: [value(report, title) for report in reports] for title in MEASURES}
        yield (
            f"{name:<24}" + "".join(f"{spread(one):>24}" for one in each.values()) + f"{failed:>8}"
        )
        if name == BASE.name or BASE.name not in found:
            continue
        base = {title: [value(report, title) for report in found[BASE.name]] for title in MEASURES}
        ratios = [
            spread([one / other for one, other in zip(each[title], base[title], strict=True)])
            for title in MEASURES
        ]
        yield f"{'  of sarathi':<24}" + "".join(f"{one:>24}" for one in ratios)


def spread(values: Sequence[float]) -> str:
    """Mean, least and most."""
    return f"{statistics.fmean(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--load", type=float, default=1.1, help="default: %(default)s")
    parser.add_argument("--rate", type=float, help="requests/s; default: --load of sarathi's")
    parser.add_argument("--kv-blocks", type=int, default=32, help="default: %(default)s")
    told = f"default: %(default)s; there are {', '.join(WAYS)}"
    parser.add_argument("--ways", default=USUAL, help=told)
    parser.add_argument("--seed", type=int, default=0, help="of round 1; default: %(default)s")
    parser.add_argument("--out", type=Path, help="a file for the figures; default: none")
    options = parser.parse_args()
    chosen = options.ways.split(",")
    if unknown := set(chosen) - set(WAYS):
        parser.error(f"no such ways: {', '.join(sorted(unknown))}")
    machine = {**describe(), "vectors": vectors()}
    print(", ".join(f"{key} {one}" for key, one in machine.items()))
    rate = options.rate or options.load * closed_rate(options.requests, options.kv_blocks)
    print(f"{rate:.2f} requests/s", flush=True)
    seeds = range(options.seed, options.seed + options.rounds)
    specs = [arriving(options.requests, rate, seed) for seed in seeds]
    found = rounds([WAYS[name] for name in chosen], specs, options.kv_blocks)
    print("\n".join(table(found)))
    if options.out is not None:
        figures = {
            name: {title: [value(report, title) for report in reports] for title in MEASURES}
            for name, reports in found.items()
        }
        asked = {"rate": rate, "requests": options.requests, "kv_blocks": options.kv_blocks}
        text = json.dumps({"machine": machine, **asked, "ways": figures}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
