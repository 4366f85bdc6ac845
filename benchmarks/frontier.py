"""What a short mean costs in long pauses: mean latency against the longest gap, policy by policy.

Every cell is a workload under Poisson or Gamma arrivals, on OPT-13B under DistServe's fit with 12e9
bytes of KV (`benchmarks/scheduling.py`), of the requests within its context of 2,048 tokens. Each
policy sees the same arrivals, and figures are means over the seeds. Beside each figure stands its
ratio to the better of `sarathi` and `sarathi+swap` in that measure, with `!` where it is over the
bound: 1.03 for mean normalised latency and mean JCT, 1.4 for P99 JCT, 1.25 for P99 TTFT, 1.5 for
P99 TPOT, and for the P99 of the longest gap 1.5 or 5 s, whichever allows more.

--load is a share of the workload's capacity: requests/s that `sarathi+swap` finishes between 10 %
and 90 % of completions where all requests of seed 0 are there at once. `--search` measures it anew
and keeps it in benchmarks/results/frontier-capacity.json. The planner's capacity is not used: it
counts what still runs at the last arrival, which on `skew` needs some 24,000 requests to be little.
Gamma arrivals of one seed may come much faster or slower: the load as it came is printed beside it.
Growing answers are four times as long at the end as at first, so that the end is overloaded.
--requests is for a cell; `book` has 0.4 times as many and `growing` 0.7, as their answers are long.

`gittins:2` has `max_pause_s` = 2, `gittins` the daemon's own 4, and `gittins:inf` promises nothing.
Predictions concern `speculative` and `gittins` alone. `features` is left out: it reads prompts, and
these workloads have only lengths.

    python -m benchmarks.frontier [--cells sharegpt,skew/gamma:4] [--policies ...] [--seeds 0,1]
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.scheduling import KV_BYTES, Way, mean, scenario
from daemon.lab.planner.pareto import ParetoPoint, plot_pareto
from daemon.lab.report.measures import completion_window
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.gittins import Gittins

CAPACITIES = Path(__file__).parent / "results" / "frontier-capacity.json"
CAPACITY_REQUESTS = 3000


class Kind(NamedTuple):
    """A workload, and how many of the asked requests it takes: fewer where answers are long."""

    spec: WorkloadSpec
    share: float = 1.0


WORKLOADS = {
    "sharegpt": Kind(WorkloadSpec(name="sharegpt")),
    "skew": Kind(WorkloadSpec(name="skew")),
    "azure-conv": Kind(WorkloadSpec(name="azure-conv")),
    "code": Kind(WorkloadSpec(name="splitwise-code")),
    "book": Kind(WorkloadSpec(name="bwb-4k"), 0.4),
    "growing": Kind(WorkloadSpec(name="sharegpt", drift=4.0), 0.7),
}
ARRIVALS = ("poisson", "gamma:4")
CELLS = tuple(f"{name}/{arrivals}" for name in WORKLOADS for arrivals in ARRIVALS)


class Unpaced(Gittins):
    """The order alone, with no promise to those that have begun."""

    name = "gittins:inf"
    paces = False


def know_unpaced() -> None:
    """Let scenarios of this process name it."""
    POLICIES[Unpaced.name] = Unpaced


BASELINES = (Way("sarathi", RECOMPUTE), Way("sarathi"))
PLAIN = (*BASELINES, Way("vllm"), Way("mlfq"))
TOLD = (
    Way("speculative"),
    *(Way("gittins", max_pause_s=pause_s) for pause_s in (0.5, 1.0, 2.0, 4.0, 8.0)),
    Way(Unpaced.name),
)
"""Policies that make use of predictions."""
NAMES = tuple(way.name for way in (*PLAIN, *TOLD))
PREDICTORS = ("none", "mean", "noisy:0.5", "oracle", "adversary")


class Measure(NamedTuple):
    """A column: a measure of the report, and how far it may be above the better baseline's."""

    title: str
    field: str
    stat: str
    bound: float
    least_s: float = 0.0  # never too much

    def value(self, reports: list[Report]) -> float:
        """Its mean over the seeds."""
        return mean(reports, self.field, self.stat)

    def misses(self, value: float, base: float) -> bool:
        """Whether a value is over the bound."""
        return value > max(self.bound * base, self.least_s)


LATENCY = Measure("s/token", "normalized_latency_s", "mean", 1.03)
GAP = Measure("P99 gap", "longest_gap_s", "p99", 1.5, least_s=5.0)
MEASURES = (
    LATENCY,
    Measure("JCT", "jct_s", "mean", 1.03),
    Measure("P99 JCT", "jct_s", "p99", 1.4),
    Measure("P99 TTFT", "ttft_s", "p99", 1.25),
    GAP,
    Measure("P99 TPOT", "tpot_s", "p99", 1.5),
)

Found = Mapping[Way, list[Report]]  # a report for each seed


class Job(NamedTuple):
    """One run."""

    cell: str
    way: Way
    seed: int


class Run(NamedTuple):
    """What came of it."""

    report: Report
    came_rps: float  # the rate that the seed's draw of arrivals has, which under Gamma varies
    processor_s: float


class CellResult(NamedTuple):
    """A cell whose runs are done."""

    cell: str
    found: Found
    loads: list[float]  # of each seed, as they came
    processor_s: float


def chosen_cells(text: str) -> list[str]:
    """Cells by their names; a workload's name alone means both arrivals. Raises ValueError."""
    found = []
    for name in text.split(","):
        cells = [cell for cell in CELLS if name in (cell, cell.partition("/")[0])]
        if not cells:
            raise ValueError(f"no cell {name!r}: choose {', '.join((*WORKLOADS, *CELLS))}")
        found += cells
    return found


def chosen_ways(policies: str, predictors: str) -> list[Way]:
    """The baselines, and every policy with every predictor that concerns it. Raises ValueError."""
    names = policies.split(",")
    if unknown := set(names) - set(NAMES):
        raise ValueError(f"no policy {', '.join(sorted(unknown))}: choose {', '.join(NAMES)}")
    ways = [way for way in PLAIN if way in BASELINES or way.name in names]
    told = [way for way in TOLD if way.name in names]
    return ways + [way._replace(predictor=one) for way in told for one in predictors.split(",")]


def workload(name: str, arrivals: str, requests: int, rate: float, seed: int) -> WorkloadSpec:
    """What one run is asked."""
    spec, share = WORKLOADS[name]
    return msgspec.structs.replace(
        spec, requests=round(share * requests), arrivals=arrivals, rate=rate, seed=seed
    )


def capacity(name: str) -> float:
    """Requests/s of a workload that is there at once, without its beginning and its end."""
    spec = workload(name, "closed", CAPACITY_REQUESTS, 0.0, 0)
    log = run(prepare(scenario(Way("sarathi"), spec, KV_BYTES, 0)))
    window = completion_window(log.requests)
    assert window is not None, "none finished"
    begin_s, end_s = window
    inside = (log.requests.last_s > begin_s) & (log.requests.last_s <= end_s)
    return float(inside.sum()) / (end_s - begin_s)


def one_run(job: Job, requests: int, rate: float) -> Run:
    """Simulate it."""
    begin_s = time.process_time()
    name, _, arrivals = job.cell.partition("/")
    spec = workload(name, arrivals, requests, rate, job.seed)
    prepared = prepare(scenario(job.way, spec, KV_BYTES, job.seed))
    report = report_of(prepared, run(prepared))
    came_rps = report.requests / float(prepared.workload.arrival_s[-1])
    return Run(report, came_rps, time.process_time() - begin_s)


def bases(found: Found) -> dict[Measure, float]:
    """The better baseline's value of each measure."""
    return {one: min(one.value(found[way]) for way in BASELINES) for one in MEASURES}


def table(found: Found) -> Iterator[str]:
    """A row for each way: each measure, its ratio to the better baseline and `!` if it misses."""
    base = bases(found)
    yield f"{'policy':<24}" + "".join(f"{one.title:>18}" for one in MEASURES) + f"{'longest':>10}"
    for way, reports in found.items():
        row = f"{way.name:<24}"
        for one in MEASURES:
            value = one.value(reports)
            mark = "!" if one.misses(value, base[one]) else " "
            row += f"{value:>10.3f} {value / base[one]:>6.2f}{mark}"
        longest = max(report.longest_gap_s.max or 0.0 for report in reports)
        unfinished = sum(report.requests - report.finished for report in reports)
        yield f"{row}{longest:>10.1f}" + (f"  {unfinished} unfinished" if unfinished else "")


def missed(found: Found) -> dict[str, list[str]]:
    """By way, but for the baselines: the measures that are over their bounds."""
    base = bases(found)
    return {
        way.name: [one.title for one in MEASURES if one.misses(one.value(reports), base[one])]
        for way, reports in found.items()
        if way not in BASELINES
    }


def figures(found: Found) -> dict[str, dict[str, list[float]]]:
    """By way and measure: a value for each seed."""
    return {
        way.name: {
            one.title: [round(one.value([report]), 4) for report in reports] for one in MEASURES
        }
        for way, reports in found.items()
    }


def draw(found: Found, path: Path) -> None:
    """The picture of a cell: who has both a shorter mean and shorter gaps than others."""
    points = [
        ParetoPoint(way.name, GAP.value(reports), LATENCY.value(reports))
        for way, reports in found.items()
    ]
    plot_pareto(points, path, "P99 of the longest gap, s", "mean normalised latency, s/token")


def search(names: Sequence[str], workers: int | None) -> None:
    """Measure capacities and keep them; those of other workloads stay as they are."""
    with ProcessPoolExecutor(workers) as pool:
        rates = dict(zip(names, pool.map(capacity, names), strict=True))
    kept = json.loads(CAPACITIES.read_text(encoding="utf-8")) if CAPACITIES.exists() else {}
    text = json.dumps({**kept, **rates}, indent=1, sort_keys=True)
    CAPACITIES.write_text(text + "\n", encoding="utf-8")
    for name, rate in rates.items():
        print(f"{name:<12}{rate:>8.3f} requests/s")


def results(
    cells: Sequence[str], ways: Sequence[Way], seeds: Sequence[int], options: argparse.Namespace
) -> Iterator[CellResult]:
    """Cells as they are done."""
    capacities = json.loads(CAPACITIES.read_text(encoding="utf-8"))
    under_way = {}
    with ProcessPoolExecutor(options.workers, initializer=know_unpaced) as pool:
        for cell in cells:
            rps = capacities[cell.partition("/")[0]]
            jobs = [Job(cell, way, seed) for way in ways for seed in seeds]
            one = partial(one_run, requests=options.requests, rate=options.load * rps)
            under_way[cell] = rps, pool.map(one, jobs)
        for cell, (rps, done) in under_way.items():
            runs = list(done)
            rows = range(0, len(runs), len(seeds))
            each = [[one.report for one in runs[row : row + len(seeds)]] for row in rows]
            loads = [one.came_rps / rps for one in runs[: len(seeds)]]
            spent_s = sum(one.processor_s for one in runs)
            yield CellResult(cell, dict(zip(ways, each, strict=True)), loads, spent_s)


def show(done: CellResult) -> None:
    """Print a cell."""
    (first, *_), *_ = done.found.values()
    came = ", ".join(f"{load:.2f}" for load in done.loads)
    print(f"\n{done.cell}: {first.label}; the seeds' loads as they came: {came}")
    print("\n".join(table(done.found)))
    for name, titles in missed(done.found).items():
        print(f"  {name}: " + (f"misses {', '.join(titles)}" if titles else "holds"))
    print(f"  {done.processor_s:.0f} s of processor", flush=True)


def measure(cells: Sequence[str], ways: Sequence[Way], options: argparse.Namespace) -> None:
    """Run every cell, and show and draw each as soon as it is done."""
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print(f"load {options.load:g}, seeds {options.seeds}; means over the seeds, ratios, ! misses")
    by_cell: dict[str, object] = {}
    total_s = 0.0
    for done in results(cells, ways, seeds, options):
        show(done)
        loads = [round(load, 3) for load in done.loads]
        by_cell[done.cell] = {"loads": loads, "policies": figures(done.found)}
        total_s += done.processor_s
        if options.plot is not None:
            options.plot.mkdir(parents=True, exist_ok=True)
            name = done.cell.replace("/", "-").replace(":", "")
            draw(done.found, options.plot / f"frontier-{name}.svg")
    print(f"\n{total_s:.0f} s of processor for all of it")
    if options.json is not None:
        told = {"load": options.load, "seeds": seeds, "requests": options.requests}
        text = json.dumps({**told, "processor_s": round(total_s), "cells": by_cell}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default=",".join(CELLS), help="default: all of %(default)s")
    parser.add_argument("--policies", default=",".join(NAMES), help="default: %(default)s")
    parser.add_argument("--predictors", default=",".join(PREDICTORS), help="default: %(default)s")
    parser.add_argument("--seeds", default="3,4", help="0 to 2 tuned gittins; default: %(default)s")
    parser.add_argument("--requests", type=int, default=3000, help="default: %(default)s")
    parser.add_argument("--load", type=float, default=0.9, help="default: %(default)s of capacity")
    parser.add_argument("--workers", type=int, help="processes; default: as many as cores")
    parser.add_argument("--json", type=Path, help="a file for the figures of each seed")
    parser.add_argument("--plot", type=Path, help="a folder for a picture of each cell")
    parser.add_argument("--search", action="store_true", help="measure the cells' capacities")
    options = parser.parse_args()
    try:
        cells = chosen_cells(options.cells)
        ways = chosen_ways(options.policies, options.predictors)
    except ValueError as error:
        parser.error(str(error))
    if options.search:
        search(sorted({cell.partition("/")[0] for cell in cells}), options.workers)
    else:
        measure(cells, ways, options)


if __name__ == "__main__":
    main()
