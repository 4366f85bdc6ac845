"""Roles against mixed instances on DistServe's applications (Table 1): chat, code and summaries.

    python -m benchmarks.studies roles_distserve [--instances 3] [--share 1.0] [--only chat-13b ...]

Equally many devices on both sides: all instances mixed, or some of them for prompts and others
for answers, in each split. A request keeps its promises if its TTFT and its TPOT both do; the rate
of a side is the highest at which 90 % of the requests (after the first tenth) do. The mixed ones
have the chunk with which most do at the rate that 512 tokens reach, the others whole prompts.
Arrivals are Poisson. Then all sides at the same rates, as parts of that of the mixed ones.

OPT-175B has no profile, so that its chat is left out. Lengths: `sharegpt` within OPT's 2,048 tokens
for chat; for code HumanEval's prompts and solutions, by quantiles in the embedded model's tokens;
for summaries, where LongBench is not at hand, `arxiv-4k` with prompts cut to what the context
leaves beside the answer.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.studies import frame
from daemon.lab.planner.capacity import find_capacity
from daemon.lab.planner.goal import Goal
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.length_distributions import DISTRIBUTIONS, Lengths
from daemon.lab.workload.marginals import Quantiles
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from daemon.state.role import Role

CONTEXT_LEN = 2048
DRAWN = 4000
MIXED_CHUNKS = (512, 128, 256, 2048)
APART_CHUNKS = (2048,)
PARTS = (0.8, 1.0, 1.25)
GOAL = Goal(attainment=0.9, unserved_fraction=1.0)  # the paper asks for attainment alone
WIDTH = 0.08
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
HUMANEVAL = Lengths(
    "HumanEval's prompts and canonical solutions",
    Quantiles(SHARES, (40, 74, 95, 122, 166, 231, 395)),
    Quantiles(SHARES, (6, 16, 28, 48, 79, 111, 268)),
    rank_correlation=0.43,
)


class Application(NamedTuple):
    """A row of the paper's table."""

    name: str
    profile: str
    num_devices: int  # of an instance
    workload: str  # a named one, or a key of `tables`
    ttft_s: float
    tpot_s: float
    rate: float  # per second and instance: where the search begins
    requests: int  # so many that answers pile up, and what waits is late, where a rate is too high


APPLICATIONS = (
    Application("chat-13b", "opt-13b@a100-80g", 1, "sharegpt", 0.2, 0.1, 6.0, 3000),
    Application("chat-66b", "opt-66b@a100-80g-tp4", 4, "sharegpt", 0.4, 0.1, 6.0, 2000),
    Application("code-66b", "opt-66b@a100-80g-tp4", 4, "code", 0.125, 0.2, 8.0, 1000),
    Application("summaries-66b", "opt-66b@a100-80g-tp4", 4, "summaries", 15.0, 0.15, 3.0, 3000),
)


class Side(NamedTuple):
    """Roles of instances, and the largest chunk of a prompt."""

    roles: tuple[Role, ...]
    chunk: int

    @property
    def name(self) -> str:
        """For a table."""
        prompts, answers = (self.roles.count(one) for one in (Role.PREFILL, Role.DECODE))
        return f"{prompts} prefill, {answers} decode" if prompts else f"{len(self.roles)} mixed"


def tables(folder: Path) -> dict[str, Path]:
    """Lengths that are no named workload, as files."""
    chance = np.random.default_rng(1)
    prompts, outputs = DISTRIBUTIONS["arxiv-4k"]().draw(DRAWN, chance)
    outputs = np.minimum(outputs, CONTEXT_LEN // 2)
    drawn = {
        "code": HUMANEVAL.draw(DRAWN, chance),
        "summaries": (np.minimum(prompts, CONTEXT_LEN - outputs), outputs),
    }
    paths = {}
    for name, columns in drawn.items():
        rows = [f"{one},{other}" for one, other in zip(*columns, strict=True)]
        paths[name] = folder / f"{name}.csv"
        paths[name].write_text("\n".join(["num_prefill_tokens,num_decode_tokens", *rows]))
    return paths


def scenario_of(application: Application, side: Side, spec: WorkloadSpec) -> Scenario:
    """One side."""
    promised = SloClass(ttft_s=application.ttft_s, tpot_s=application.tpot_s)
    return Scenario(
        workload=msgspec.structs.replace(spec, classes=(promised,)),
        instance=tuple(
            InstanceGroup(profile=application.profile, role=role.value) for role in side.roles
        ),
        predictor="none",
        limits=ScenarioLimits(max_batch_tokens=side.chunk, prefill_chunk=side.chunk),
    )


def sides(num_instances: int) -> Iterator[list[Side]]:
    """All mixed, and each split; those of a list differ by their chunks."""
    yield [Side((Role.MIXED,) * num_instances, chunk) for chunk in MIXED_CHUNKS]
    for count in range(1, num_instances):
        roles = (Role.PREFILL,) * count + (Role.DECODE,) * (num_instances - count)
        yield [Side(roles, chunk) for chunk in APART_CHUNKS]


def attainment(scenario: Scenario) -> float:
    """The share of requests that keep both promises."""
    return frame.simulated(scenario).report.slo_attainment or 0.0


def best_of(alike: list[Side], application: Application, spec: WorkloadSpec) -> tuple[float, Side]:
    """The highest rate of sides that differ by their chunks, and whose it is."""
    first = alike[0]

    def reached(side: Side) -> float:
        return find_capacity(scenario_of(application, side, spec), GOAL, WIDTH).rps

    rate = reached(first)
    there = msgspec.structs.replace(spec, rate=rate or spec.rate)
    if len(alike) == 1:
        return rate, first
    kept = {one: attainment(scenario_of(application, one, there)) for one in alike}
    other = max(alike, key=lambda one: (kept[one], one is first))
    return (rate, first) if other is first else max((rate, first), (reached(other), other))


def compare(application: Application, spec: WorkloadSpec, num_instances: int) -> None:
    """Print an application's rows."""
    base = 0.0
    for alike in sides(num_instances):
        best, side = best_of(alike, application, spec)
        base = base or best
        cells = [application.name, side.name, f"{side.chunk}"]
        for part in PARTS:
            at = msgspec.structs.replace(spec, rate=part * base)
            cells.append(f"{100 * attainment(scenario_of(application, side, at)):.0f} %")
        cells.append(f"{best / (num_instances * application.num_devices):.3f}")
        cells.append(f"{best / base:.2f}")
        frame.row(cells)


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests of each run")
    names = [one.name for one in APPLICATIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)


def study(arguments: argparse.Namespace) -> None:
    """Print its tables."""
    heads = ["Application", "Instances", "Chunk", *(f"at {part:g}" for part in PARTS)]
    frame.heads(*heads, "/s a device", "of mixed")
    with tempfile.TemporaryDirectory(prefix="llmd-roles-") as folder:
        files = tables(Path(folder))
        for application in APPLICATIONS:
            if application.name in arguments.only:
                trace = files.get(application.workload)
                spec = WorkloadSpec(
                    trace=trace,
                    name="" if trace else application.workload,
                    arrivals="poisson",
                    rate=arguments.instances * application.rate,
                    requests=max(1, round(arguments.share * application.requests)),
                )
                compare(application, spec, arguments.instances)
