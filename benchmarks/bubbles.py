"""Bubbles of pipeline stages with and without even steps (DistServe 4.3), simulated and live.

A bubble is the time in which a stage computes nothing though a step of its instance is in flight.
Simulated is each given profile of stages; live are the two stages of an embedded model on this
machine's CPU, in turns, with long prompts beside answers.

    python -m benchmarks.bubbles [--profiles NAME ...] [--rounds 3] [--requests 24] [--rate 0.25]
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from pathlib import Path

from benchmarks.instances import ready, stage_times
from benchmarks.live import bench, started
from benchmarks.peers.machine import describe
from benchmarks.uneven_stages import uneven
from daemon.lab.report.records import Span
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import Options, prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario
from daemon.lab.workload.workload import WorkloadSpec

PROFILES = ("opt-13b@a100-80g-pp2", "llama-2-70b@a100-80g-tp2-pp4")
WAYS = {"even": "daemon.cli.main", "uneven": "benchmarks.uneven_stages"}
MAX_LEN = 1024


def in_flight_s(spans: Iterable[Span]) -> float:
    """The time in which at least one of these is going on."""
    total_s = end_s = 0.0
    for span in sorted(spans, key=lambda span: span.start_s):
        until_s = span.start_s + span.duration_s
        total_s += max(0.0, until_s - max(end_s, span.start_s))
        end_s = max(end_s, until_s)
    return total_s


def simulated(profile: str, rate: float, requests: int) -> None:
    """Print the bubbles of a profile's stages, and what requests wait."""
    workload = WorkloadSpec(name="hpld", requests=requests, arrivals="poisson", rate=rate, seed=1)
    scenario = Scenario(
        workload=workload, instance=(InstanceGroup(profile=profile),), policy="sarathi", seed=1
    )
    for way in WAYS:
        with uneven() if way == "uneven" else nullcontext():
            prepared = prepare(scenario)
            log = run(prepared, Options(spans=True))
        report = report_of(prepared, log)
        (instance,) = log.instances
        steps = [span for span in log.spans or () if span.track == instance.name]
        bubble = 1.0 - instance.busy_s / in_flight_s(steps)
        print(
            f"| `{profile}` | {way} | {bubble:.1%} | {1e3 * report.ttft_s.mean:.0f} ms "
            f"| {1e3 * report.tpot_s.mean:.1f} ms |",
            flush=True,
        )


def live(rounds: int, rate: float, requests: int) -> None:
    """Print the bubbles of two stages on this machine."""
    flags = ["--instance", "cpu:pp2", "--policy", "sarathi", "--predictor", "none"]
    flags += ["--set", f"model.max_len={MAX_LEN}", "--set", "scheduler.prefix_cache=false"]
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        urls = {}
        for way, module in WAYS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            urls[way] = stack.enter_context(started(flags, folder, module)).url
            asyncio.run(ready(urls[way]))
        for turn in range(rounds):
            order = [*urls.items()]
            for way, url in order if turn % 2 == 0 else reversed(order):
                spec = WorkloadSpec(
                    name="hpld", requests=requests, arrivals="poisson", rate=rate, seed=turn
                )
                before = asyncio.run(stage_times(url)) or [0.0] * 3
                report = bench(url, spec, MAX_LEN).report
                now = asyncio.run(stage_times(url))
                steps_s, *computed_s = (late - own for late, own in zip(now, before, strict=True))
                bubbles = [1.0 - own / steps_s for own in computed_s]
                found[way].append((*bubbles, report.ttft_s.mean, report.tpot_s.mean))
    for way, rows in found.items():
        first, last, ttft_s, tpot_s = map(statistics.median, zip(*rows, strict=True))
        print(
            f"| `cpu:pp2` | {way} | {first:.1%}, {last:.1%} | {1e3 * ttft_s:.0f} ms "
            f"| {1e3 * tpot_s:.1f} ms |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", nargs="*", default=PROFILES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rate", type=float, default=0.25)
    options = parser.parse_args()
    print(describe())
    print("| Stages | steps | bubbles | mean TTFT | mean TPOT |\n|---|---|---|---|---|")
    for profile in options.profiles:
        simulated(profile, 1.5, 100)
    if options.rounds:
        live(options.rounds, options.rate, options.requests)


if __name__ == "__main__":
    main()
