"""One CPU worker, two that have the cores dealt out, and two that each compute on all of them.

Tokens per second of a real daemon with the embedded model, at so many equal answers at a time, all
asked for at once. Each round runs every way once, one after another, so that a slow minute of the
machine meets all of them; the medians over the rounds are printed, and each relative to one worker.

    python -m benchmarks.cpu_workers [--rounds 5] [--streams 1,8,32] [--tokens 128]
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.live import bench, daemon
from daemon.lab.workload.workload import WorkloadSpec

PROMPT_TOKENS = 32
TWO = ("--instance", "cpu", "cpu")
ALL_CPUS = ("--set", f"daemon.threads={len(os.sched_getaffinity(0))}")
WAYS: dict[str, tuple[str, ...]] = {
    "one worker": (),
    "two workers, cores dealt out": TWO,
    "two workers, each on all cores": (*TWO, *ALL_CPUS),
}


def trace(folder: Path, streams: int, tokens: int) -> Path:
    """So many requests of one size."""
    path = folder / f"{streams}.csv"
    rows = [f"{PROMPT_TOKENS},{tokens}"] * streams
    path.write_text(
        "\n".join(["num_prefill_tokens,num_decode_tokens", *rows, ""]), encoding="ascii"
    )
    return path


def measured(flags: tuple[str, ...], streams: list[int], tokens: int) -> dict[int, float]:
    """Tokens per second of a fresh daemon at each number of streams, after a run that warms it."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="llmd-cpu-") as name:
        folder = Path(name)
        settings = ["--set", "daemon.spare=false", "--set", "scheduler.prefix_cache=false"]
        with daemon([*flags, *settings], folder) as url:
            for count in (max(streams), *streams):
                path = trace(folder, count, tokens)
                spec = WorkloadSpec(trace=path, requests=count, arrivals="closed")
                found[count] = bench(url, spec, 0).report.output_tokens_per_s
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    arguments = parser.parse_args()
    streams = [int(count) for count in arguments.streams.split(",")]
    found: dict[str, dict[int, list[float]]] = {
        way: {count: [] for count in streams} for way in WAYS
    }
    for turn in range(arguments.rounds):
        for way, flags in WAYS.items():
            for count, rate in measured(flags, streams, arguments.tokens).items():
                found[way][count].append(rate)
                print(f"round {turn + 1}, {way}, {count} streams: {rate:.1f} tok/s", flush=True)
    print(f"\n{'tok/s, median of rounds':<34}" + "".join(f"{n:>9} streams" for n in streams))
    alone = {count: statistics.median(rates) for count, rates in found["one worker"].items()}
    for way, rates in found.items():
        medians = {count: statistics.median(rates[count]) for count in streams}
        cells = [f"{medians[n]:>8.1f} ({medians[n] / alone[n]:>5.0%})" for n in streams]
        print(f"{way:<34}" + " ".join(cells))


if __name__ == "__main__":
    main()
