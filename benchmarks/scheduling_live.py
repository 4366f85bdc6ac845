"""The policies on a real daemon: the embedded model on this machine's CPU, with little KV memory.

The shapes of benchmarks.studies.scheduling scaled down: ShareGPT-like lengths within 96 tokens
(some 20 in and 35 out), of which a pool of --kv-blocks holds about nine; Gamma arrivals of CV 4 at
a share of what `sarathi` (as published: who gives way is computed again) serves when all requests
are there at once. That is found first, unless --rate says it; with --load 0 all are there at once
in each run, as memory is measured. Draws are stretched until their mean rate is what was asked.
Each round has arrivals and lengths of its own and runs every way once, one after another, each on a
fresh daemon, so that a slow hour of the machine meets all of them.

Clients ask for as many tokens as they get. Only `srtf` orders by that: it is the oracle here;
others are told nothing or, with `noisy:SIGMA`, the truth with lognormal error. Since no room is
kept beyond a limit, errors upwards cost no memory here, as they do where answers end by themselves.
What was allocated and written of the KV, and who gave way, is what each daemon's journal replays.
All requests are of one key; which share of the answers kept the deadlines of its class (EcoServe,
section 4) is what the daemon's metrics count.

    python -m benchmarks.scheduling_live [--rounds 4] [--requests 100] [--load 1.1] [--out FILE]
    python -m benchmarks.scheduling_live --ways lending|ablations [--load 0] [--slo-scale 5]
"""

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.live import bench, daemon
from benchmarks.peers.machine import describe, vectors
from benchmarks.studies.lending import Row
from benchmarks.studies.scheduling import NOISY, Way
from daemon.config.keys import hash_of, new_key
from daemon.journal.records import FILE_NAME
from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.report.summarize import About, summarize
from daemon.lab.simulator.journal import read_incident
from daemon.lab.simulator.replayed import replayed
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.decode_admission import RESERVE_PEAK

WORKLOAD, MAX_LEN = "sharegpt", 96
ARRIVALS = "gamma:4"
BASE = Row(Way("sarathi", RECOMPUTE))
DEFAULT = Row(Way("gittins", predictor="features"))
"""As a daemon serves that is asked for nothing else."""

TRUE, NEAR = "noisy:0", "noisy:0.3"
LENDING = (
    BASE,
    Row(Way("sarathi")),
    Row(Way("gittins")),
    *(
        row
        for told in (TRUE, NEAR)
        for row in (
            Row(Way("gittins", predictor=told)),
            Row(Way("gittins", predictor=told), RESERVE_PEAK),
            Row(Way("packed", predictor=told)),
        )
    ),
)
"""Those that show what memory does that is lent until it is needed."""

ABLATIONS = (
    BASE,
    Row(Way("static", RECOMPUTE)),
    Row(Way("orca", RECOMPUTE)),
    Row(Way("vllm", RECOMPUTE)),
    *(Row(Way(f"synced{part}", predictor=TRUE)) for part in ("-d", "-sd", "-sdo", "")),
    Row(Way("packed", predictor=TRUE)),
)
"""What each part of `synced` does, and packing by the peak, beside what they are compared with."""


def name_of(row: Row) -> str:
    """As flags and the table have it."""
    return row.name.replace(", ", "+")


WAYS = {
    name_of(row): row
    for row in (
        *ABLATIONS,
        *LENDING,
        Row(Way("packed")),
        Row(Way("packed", "reactive", NEAR)),
        Row(Way("mlfq")),
        Row(Way("mlfq", "reactive")),
        Row(Way("mlfq", "recompute")),
        Row(Way("mlfq", "defer")),
        Row(Way("speculative")),
        Row(Way("speculative", predictor=NOISY)),
        DEFAULT,
        Row(Way("gittins", predictor="mean")),
        Row(Way("gittins", predictor=NOISY)),
        Row(Way("srtf")),
    )
}
USUAL = f"sarathi,mlfq,speculative,{name_of(DEFAULT)}"
GROUPS = {
    "lending": ",".join(map(name_of, LENDING)),
    "ablations": ",".join(map(name_of, ABLATIONS)),
}
"""Ways that are compared often, by a name for all of them."""

MEASURES = {
    "req/s": "throughput_rps",
    "s/token": "normalized_latency_s.mean",
    "JCT": "jct_s.mean",
    "P99 JCT": "jct_s.p99",
    "P99 TTFT": "ttft_s.p99",
    "TBT": "tbt_s.mean",
    "P99 gap": "longest_gap_s.p99",
    "longest": "longest_gap_s.max",
    "kept": "slo_attainment",
}
"""What clients saw, as a report has it, and the deadlines that were kept, by column."""

MEMORY = {
    "allocated": "kv_allocated_fraction",
    "written": "kv_written_fraction",
    "preempted": "preempted_requests_fraction",
    "recomputed": "recomputed_tokens",
}
"""What the daemon's journal tells beside that; preempted: after the first token."""

DEADLINES = "llmd:deadlines_total"

Found = Mapping[str, list[Report]]  # by way, a report for each round


class Asked(NamedTuple):
    """What all ways have alike."""

    kv_blocks: int
    slo_scale: float  # of the clients' key


def measured(row: Row, spec: WorkloadSpec, asked: Asked) -> Report:
    """What clients of a fresh daemon saw, and what its metrics and its journal tell beside that."""
    way = row.way
    flags = ["--policy", way.policy, "--predictor", way.predictor]
    flags += ["--kv-blocks", str(asked.kv_blocks), "--set", f"model.max_len={MAX_LEN}"]
    flags += ["--set", "scheduler.prefix_cache=false"]
    flags += ["--set", f'scheduler.decode_admission="{row.rule}"']
    if way.swap:
        flags += ["--set", f'memory.swap="{way.swap}"']
    with tempfile.TemporaryDirectory(prefix="llmd-live-") as name:
        folder, key = Path(name), new_key()
        section = f'[[key]]\nname = "clients"\nhash = "{hash_of(key)}"\n'
        (folder / "llmd.toml").write_text(f"{section}slo_scale = {asked.slo_scale}\n")
        with daemon(["--config", str(folder / "llmd.toml"), *flags], folder) as url:
            seen = bench(url, spec, MAX_LEN, key).report
            kept = deadlines_kept(url, key, seen.finished) if asked.slo_scale else None
        run = replayed(read_incident(folder / FILE_NAME))
    return with_memory(msgspec.structs.replace(seen, slo_attainment=kept), run)


def deadlines_kept(url: str, key: str, answers: int) -> float:
    """The share of so many answers that kept their deadline, once all have been counted."""
    kept = missed = 0.0
    while kept + missed < answers:
        time.sleep(0.2)
        kept, missed = (answers_due(url, key, how) for how in ("kept", "missed"))
    return kept / answers


def answers_due(url: str, key: str, outcome: str) -> float:
    """How many answers had a deadline and this outcome, so far."""
    request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = (sample for family in families for sample in family.samples)
    due = (sample for sample in samples if sample.name == DEADLINES)
    return sum(sample.value for sample in due if sample.labels["outcome"] == outcome)


def with_memory(seen: Report, run: RunLog) -> Report:
    """A report of what clients saw, with what the log of the same run tells of memory."""
    about = About(kind=seen.kind, label=seen.label, policy=seen.policy, profile=seen.profile)
    inside = summarize(run, about)
    told = {field: getattr(inside, field) for field in MEMORY.values()}
    return msgspec.structs.replace(seen, **told)


def at_once(requests: int, seed: int) -> WorkloadSpec:
    """All requests are there at once."""
    return WorkloadSpec(name=WORKLOAD, requests=requests, arrivals="closed", seed=seed)


def closed_rate(requests: int, asked: Asked) -> float:
    """Requests/s of `sarathi` where all are there at once."""
    return measured(BASE, at_once(requests, 7), asked).throughput_rps


def arriving(requests: int, rate: float, seed: int) -> WorkloadSpec:
    """Arrivals whose draw, and not only its mean, comes at this rate: times go as 1 / rate."""
    drawn = WorkloadSpec(name=WORKLOAD, requests=requests, arrivals=ARRIVALS, rate=rate, seed=seed)
    took_s = float(build(drawn, MAX_LEN).arrival_s[-1])
    return msgspec.structs.replace(drawn, rate=rate * took_s / (requests / rate))


def rounds(
    ways: Mapping[str, Row], specs: Sequence[WorkloadSpec], asked: Asked
) -> dict[str, list[Report]]:
    """Every way once in each round."""
    found: dict[str, list[Report]] = {name: [] for name in ways}
    for number, spec in enumerate(specs):
        for name, row in ways.items():
            begin_s = time.monotonic()
            found[name].append(measured(row, spec, asked))
            took_s = time.monotonic() - begin_s
            print(f"round {number + 1}, {name}: {took_s:.0f} s with the start", flush=True)
    return found


def value(report: Report, path: str) -> float:
    """A measure of a report; NaN where no request has it."""
    found = attrgetter(path)(report)
    return float("nan") if found is None else float(found)


def ratio(report: Report, base: Report, path: str) -> float:
    """A measure in units of another run's; NaN where that is nothing."""
    return value(report, path) / (value(base, path) or float("nan"))


def table(found: Found) -> Iterator[str]:
    """Two rows for each way: means over the rounds, then ratios to `sarathi` round by round; both
    with the least and the most. Then a row for each way of what became of memory.
    """
    yield line("policy", MEASURES, "failed")
    for name, reports in found.items():
        failed = sum(report.requests - report.finished for report in reports)
        each = {title: [value(one, path) for one in reports] for title, path in MEASURES.items()}
        yield line(name, map(spread, each.values()), str(failed))
        if name == BASE.name or BASE.name not in found:
            continue
        bases = found[BASE.name]
        ratios = (
            spread([ratio(a, b, path) for a, b in zip(reports, bases, strict=True)])
            for path in MEASURES.values()
        )
        yield line("  of sarathi", ratios)
    yield line("memory", MEMORY)
    for name, reports in found.items():
        each_way = (spread([value(one, path) for one in reports]) for path in MEMORY.values())
        yield line(name, each_way)


def line(name: str, cells: Iterable[str], last: str = "") -> str:
    """A line of the table."""
    return f"{name:<36}" + "".join(f"{cell:>24}" for cell in cells) + f"{last:>8}"


def spread(values: Sequence[float]) -> str:
    """Mean, least and most."""
    return f"{statistics.fmean(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def chosen_ways(text: str) -> dict[str, Row]:
    """The ways of a flag's text. Raises ValueError where there is no such way."""
    names = ",".join(GROUPS.get(name, name) for name in text.split(",")).split(",")
    if unknown := set(names) - set(WAYS):
        raise ValueError(f"no such ways: {', '.join(sorted(unknown))}")
    return {name: WAYS[name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=100, help="default: %(default)s")
    told = "of sarathi's requests/s; 0: all at once; default: %(default)s"
    parser.add_argument("--load", type=float, default=1.1, help=told)
    parser.add_argument("--rate", type=float, help="requests/s; default: --load of sarathi's")
    parser.add_argument("--kv-blocks", type=int, default=32, help="default: %(default)s")
    told = "deadlines: so many times what an answer takes alone; 0: none; default: %(default)s"
    parser.add_argument("--slo-scale", type=float, default=5.0, help=told)
    told = f"default: %(default)s; there are {', '.join((*GROUPS, *WAYS))}"
    parser.add_argument("--ways", default=USUAL, help=told)
    parser.add_argument("--seed", type=int, default=0, help="of round 1; default: %(default)s")
    parser.add_argument("--out", type=Path, help="a file for the figures; default: none")
    options = parser.parse_args()
    try:
        chosen = chosen_ways(options.ways)
    except ValueError as error:
        parser.error(str(error))
    asked = Asked(options.kv_blocks, options.slo_scale)
    machine = {**describe(), "vectors": vectors()}
    print(", ".join(f"{key} {one}" for key, one in machine.items()))
    seeds = range(options.seed, options.seed + options.rounds)
    rate = options.rate
    if rate is None and options.load:
        rate = options.load * closed_rate(options.requests, asked)
    if rate is None:
        specs = [at_once(options.requests, seed) for seed in seeds]
        print("all at once", flush=True)
    else:
        specs = [arriving(options.requests, rate, seed) for seed in seeds]
        print(f"{rate:.2f} requests/s", flush=True)
    found = rounds(chosen, specs, asked)
    print("\n".join(table(found)))
    if options.out is not None:
        figures = {
            name: {
                title: [value(report, path) for report in reports]
                for title, path in {**MEASURES, **MEMORY}.items()
            }
            for name, reports in found.items()
        }
        setting = {"rate": rate, "requests": options.requests, **asked._asdict()}
        text = json.dumps({"machine": machine, **setting, "ways": figures}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
