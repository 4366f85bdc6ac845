"""DistServe's placements for the workloads of its Table 1, by its Algorithms 1 and 2.

For each workload: the goodput for each device of prefill and of decode alone, of every parallelism
that the profiles have, and the placement of Algorithm 1 (any link between nodes is fast) and of
Algorithm 2 (both phases of a stage on one node of eight devices).

    python -m benchmarks.studies plan_distserve [--only "code completion"] [--requests 320]

OPT-13B and OPT-66B have profiles (DistServe's own fits); OPT-175B has none. ShareGPT's lengths are
measured quantiles; those of the other two are lognormal with the means of the paper's Figure 7.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.studies import frame
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate, Space, unit_of
from daemon.lab.planner.distserve import placement, simu_decode, simu_prefill
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.evaluate import KeptScores, Problem, WorkloadSlice
from daemon.lab.planner.goal import Goal
from daemon.lab.planner.objective import Objective
from daemon.lab.planner.session import Session, session
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.report.numbers import three_digits
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass, WorkloadSpec

DEVICE = "a100-80g"
NODE = 8
"""Devices of a node."""


class Row(NamedTuple):
    """A row of Table 1."""

    what: str
    model: str
    degrees: tuple[int, ...]  # of tensor parallelism that have a profile
    lengths: tuple[float, float] | None  # mean prompt and answer; None: ShareGPT
    ttft_s: float
    tpot_s: float


ROWS = (
    Row("chat OPT-13B", "opt-13b", (1, 2, 4), None, 0.2, 0.1),
    Row("chat OPT-66B", "opt-66b", (2, 4, 8), None, 0.4, 0.1),
    Row("code completion OPT-66B", "opt-66b", (2, 4, 8), (171.3, 98.2), 0.125, 0.2),
    Row("summaries OPT-66B", "opt-66b", (2, 4, 8), (1738.3, 90.7), 15.0, 0.15),
)
_SIGMA = 0.4
"""Of the logarithm of a length, where only its mean is known."""


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--only", type=frame.listed, default=[], help="rows whose name has these")
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--stages", type=frame.numbers, default=[1, 2, 4])
    parser.add_argument("--policy", default="distserve")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one a core")
    parser.add_argument("--resume", type=Path, help="keep each simulation's result here")


def study(options: argparse.Namespace) -> None:
    """Print the tables."""
    KeptScores(options.resume)  # refuses a file of another kind before minutes are spent
    with TemporaryDirectory() as folder, session(options.resume, options.workers) as made:
        for row in ROWS:
            if not options.only or any(word in row.what for word in options.only):
                _row(made, row, options, Path(folder))


def problem_of(row: Row, folder: Path) -> Problem:
    """A row's workload and SLOs; OPT's context is 2,048 tokens."""
    promised = (SloClass(ttft_s=row.ttft_s, tpot_s=row.tpot_s),)
    spec = WorkloadSpec(name="sharegpt", classes=promised)
    if row.lengths is not None:
        spec = WorkloadSpec(trace=_trace(row.lengths, folder), classes=promised)
    goal = Goal(ttft_s=row.ttft_s, tpot_s=row.tpot_s, unserved_fraction=1.0)
    return Problem(
        base=Scenario(workload=spec, instance=(), limits=ScenarioLimits(max_len=2048)), goal=goal
    )


def _trace(means: tuple[float, float], folder: Path) -> Path:
    chance = np.random.default_rng(5)
    path = folder / f"lengths-{means[0]:g}-{means[1]:g}.csv"
    columns = [
        np.maximum(1, np.rint(mean * chance.lognormal(-(_SIGMA**2) / 2, _SIGMA, 4000)))
        for mean in means
    ]
    lines = [f"{int(a)},{int(b)}" for a, b in zip(*columns, strict=True)]
    path.write_text("\n".join(["num_prefill_tokens,num_decode_tokens", *lines]) + "\n")
    return path


def _units(row: Row, stages: list[float]) -> list[CandidatePool]:
    found = []
    for tp in row.degrees:
        for pp in map(int, stages):
            name = f"{row.model}@{DEVICE}" + f"-tp{tp}" * (tp > 1) + f"-pp{pp}" * (pp > 1)
            try:
                if tp * pp <= NODE:
                    found.append(unit_of(name))
            except ProfileError:
                continue
    return found


def _row(made: Session, row: Row, options: argparse.Namespace, folder: Path) -> None:
    problem, units = problem_of(row, folder), _units(row, options.stages)
    knobs, part = Knobs(policy=options.policy), WorkloadSlice(0, options.requests)
    begin_s, before = time.perf_counter(), made.tried

    def both(unit: CandidatePool) -> tuple[float, float]:
        config = PlanCandidate(pools=(unit,), knobs=knobs)
        return simu_prefill(made, problem, config, part), simu_decode(made, problem, config, part)

    print(f"\n{row.what}, TTFT {row.ttft_s:g} s, TPOT {row.tpot_s:g} s\n", flush=True)
    frame.heads("configuration", "prefill, requests/s a device", "decode, requests/s a device")
    for unit, rates in zip(units, made.map(both, units), strict=True):
        each = (three_digits(rate / unit.num_devices) for rate in rates)
        frame.row((f"tp{unit.tp} pp{unit.pp}", *each))
    space = Space(units=tuple(units), devices={DEVICE: NODE}, knobs=(knobs,), mixed=False)
    cluster = msgspec.structs.replace(space, devices={DEVICE: 4 * NODE})
    print()
    for number, (affinity, there) in enumerate((("high", cluster), ("low", space)), 1):
        try:
            (found,) = placement(
                made, problem, there, Objective(), requests=options.requests, affinity=affinity
            )
            print(f"Algorithm {number}: {found.text}", flush=True)
        except PlannerError as error:
            print(f"Algorithm {number}: {error}", flush=True)
    wall_s = time.perf_counter() - begin_s
    print(f"{made.tried - before} simulations, {wall_s:.0f} s", flush=True)
