"""The runs of cells, on all cores."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.frontier.cells import capacities, setting
from benchmarks.frontier.measures import CellFigures, figures
from benchmarks.frontier.ways import know_unpaced
from benchmarks.studies.scheduling import Way
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run


class Job(NamedTuple):
    """One run."""

    cell: str
    rate: float  # requests/s
    requests: int
    way: Way
    seed: int


class Run(NamedTuple):
    """What came of it."""

    report: Report
    drawn: float  # requests/s of the draw before it was stretched, as a share of those asked
    processor_s: float


class Plan(NamedTuple):
    """What is run."""

    cells: Sequence[str]
    loads: Sequence[float]
    ways: Sequence[Way]
    seeds: Sequence[int]
    minutes: float  # of arrivals in each run, if they are
    least_requests: int
    mooncake: Path | None
    workers: int | None  # processes; None: as many as cores


def one_run(job: Job, mooncake: Path | None) -> Run:
    """Simulate it, with arrivals stretched to the rate that was asked."""
    begin_s = time.process_time()
    name, _, arrivals = job.cell.partition("/")
    asked = {"requests": job.requests, "arrivals": arrivals, "rate": job.rate}
    drawn = prepare(setting(name, job.way, job.seed, mooncake, **asked))
    times_s = drawn.workload.arrival_s
    ratio = job.requests / float(times_s[-1]) / job.rate
    prepared = replace(drawn, workload=replace(drawn.workload, arrival_s=times_s * ratio))
    report = report_of(prepared, run(prepared))
    return Run(report, ratio, time.process_time() - begin_s)


def results(plan: Plan) -> Iterator[CellFigures]:
    """Cells under their loads, as they are done."""
    rates = capacities()
    one = partial(one_run, mooncake=plan.mooncake)
    under_way = []
    with ProcessPoolExecutor(plan.workers, initializer=know_unpaced) as pool:
        for cell in plan.cells:
            for load in plan.loads:
                rate = load * rates[cell.partition("/")[0]]
                requests = max(plan.least_requests, round(rate * 60.0 * plan.minutes))
                one_cell = partial(Job, cell, rate, requests)
                jobs = [one_cell(way, seed) for way in plan.ways for seed in plan.seeds]
                under_way.append((cell, load, pool.map(one, jobs)))
        for cell, load, done in under_way:
            yield _together(plan, cell, load, list(done))


def _together(plan: Plan, cell: str, load: float, runs: Sequence[Run]) -> CellFigures:
    """What a cell's runs came to: those of a way stand side by side."""
    num = len(plan.seeds)
    rows = [[one.report for one in runs[at : at + num]] for at in range(0, len(runs), num)]
    return CellFigures(
        cell,
        load,
        runs[0].report.label,
        [round(load * one.drawn, 3) for one in runs[:num]],
        round(sum(one.processor_s for one in runs), 1),
        [figures(way.name, reports) for way, reports in zip(plan.ways, rows, strict=True)],
    )
