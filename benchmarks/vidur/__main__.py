"""Step times and capacities of Llama-2-70B on A100 beside those that Vidur itself says.

Both read Vidur's published tables (`--data`, the folder with compute/ and network/). Vidur runs in
a virtual environment of its own that has its package (`pip install vidur==0.0.9`, `--python` names
its interpreter), with its own forests, scheduler and constants. Both schedule as Sarathi-Serve
does, in the same pool of blocks, with the same requests at the same times. Capacity is the highest
rate at which the P99 of the scheduling delay is at most 5 s (Vidur, section 6).

    python -m benchmarks.vidur --data FOLDER --python VENV/bin/python [--shapes 1x1,2x1,4x1,2x2]

A shape is tensor parallel ranks x stages. Step times are printed for Vidur's constants (20 us for
the launch of an all-reduce, 10 % on attention over several sequences) and without them, since no
table has them. Where the weights do not fit a device there is no capacity.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.vidur.tables import write_tables
from daemon.cost.profile import Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.lab.planner.capacity import highest_rate
from daemon.lab.profiles.importers import IMPORTERS
from daemon.lab.profiles.load import save_profile
from daemon.lab.profiles.pipeline import staged
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import pools_for, prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioError, ScenarioLimits
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import WorkloadSpec

MODEL, PUBLISHED, DEVICE = "llama-2-70b", "meta-llama/Llama-2-70b-hf", "a100-80g"
MAX_LEN, CHUNK_TOKENS, MAX_RUNNING = 4096, 512, 128
DELAY_S = 5.0
_WIDTH = 0.02
_ASK = Path(__file__).with_name("ask_vidur.py")
_CONSTANTS = {"its constants": (0.02, 0.1), "tables alone": (0.0, 0.0)}
Rows = list[tuple[int, int]]


@dataclass
class Vidur:
    """A process of Vidur's simulator for one shape; `ask` waits for its reply."""

    process: subprocess.Popen[str]
    delays: dict[float, float] = field(default_factory=dict)

    def ask(self, question: dict[str, Any]) -> Any:
        """The reply to a question of `ask_vidur`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


@contextmanager
def vidur(
    arguments: argparse.Namespace, tp: int, pp: int, num_blocks: int, constants: tuple[float, float]
) -> Iterator[Vidur]:
    """Vidur's simulator of an instance of `tp` ranks and `pp` stages."""
    launch_ms, batching = constants
    job = {
        "model": PUBLISHED,
        "device": DEVICE.partition("-")[0],
        "tp": tp,
        "pp": pp,
        "chunk_tokens": CHUNK_TOKENS,
        "max_running": MAX_RUNNING,
        "num_blocks": num_blocks,
        "max_len": MAX_LEN,
        "launch_ms": launch_ms,
        "batching": batching,
    }
    with tempfile.TemporaryDirectory(prefix="llmd-vidur-") as name:
        tables = Path(name) / "tables"
        write_tables(arguments.data, PUBLISHED, job["device"], tp, tables)
        command = [str(arguments.python.absolute()), str(_ASK.absolute()), str(tables)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=name, text=True, **pipes)
        try:
            print(json.dumps(job), file=process.stdin, flush=True)
            yield Vidur(process)
        finally:
            process.stdin.close()
            process.wait()


def batches() -> list[Rows]:
    """Steps as they occur: decodes, chunks, and both within one budget. [tokens, before] each."""
    contexts = (255, 1023, 2047)
    decodes = [[(1, before)] * count for count, before in product((1, 8, 32, 96), contexts)]
    chunks = [[(count, before)] for count, before in product((128, 512), (0, 1024, 2048))]
    mixed = [
        [(1, before)] * count + [(CHUNK_TOKENS - count, 512)]
        for count, before in product((8, 32, 96), contexts)
    ]
    return decodes + chunks + mixed


def step_s(profile: Profile, rows: Rows) -> float:
    """Seconds of a step of one stage."""
    decodes = [before + count for count, before in rows if count == 1]
    chunks = tuple((count, before) for count, before in rows if count > 1)
    work = StepWork(len(decodes), sum(decodes), chunks, len(decodes) + len(chunks))
    stage_s = 0.0 if profile.pp == 1 else profile.stage_s(work.num_tokens)
    return step_cost(profile.step).step_s(work) + stage_s


def profile_of(arguments: argparse.Namespace, tp: int, pp: int) -> Profile:
    """The profile of a shape, from the tables."""
    profile = IMPORTERS["vidur"](arguments.data, MODEL, DEVICE, tp)
    return profile if pp == 1 else staged(profile, pp)


def steps(arguments: argparse.Namespace, tp: int, pp: int) -> None:
    """Print by how much our step times differ."""
    profile = profile_of(arguments, tp, pp)
    ours = np.array([step_s(profile, rows) for rows in batches()])
    kinds = np.repeat(("decodes", "chunks", "mixed"), (12, 6, 9))
    for name, constants in _CONSTANTS.items():
        with vidur(arguments, tp, pp, 100, constants) as asked:
            theirs = np.array(asked.ask({"batches": batches()}))
        errors = ours / theirs - 1.0
        apart = [(kind, errors[kinds == kind]) for kind in ("decodes", "chunks", "mixed")]
        by_kind = "  ".join(
            f"{kind} {own.mean():+.1%} ({np.abs(own).max():.1%})" for kind, own in apart
        )
        print(f"tp{tp} pp{pp}  {name:14} mean {np.abs(errors).mean():.1%}  {by_kind}", flush=True)


def capacity(arguments: argparse.Namespace, tp: int, pp: int, workload: str, file: Path) -> None:
    """Print both capacities of a workload."""
    spec = WorkloadSpec(
        name=workload, requests=arguments.requests, arrivals="poisson", rate=1.0, seed=1
    )
    scenario = Scenario(
        workload=spec,
        instance=(InstanceGroup(profile=str(file)),),
        policy="sarathi",
        predictor="none",
        noise=False,
        limits=ScenarioLimits(
            max_running=MAX_RUNNING,
            max_batch_tokens=CHUNK_TOKENS,
            max_len=MAX_LEN,
            prefix_cache=False,
        ),
    )
    try:
        prepared = prepare(scenario)
    except ScenarioError as error:
        print(f"tp{tp} pp{pp}  {workload}: {error}", flush=True)
        return
    pool = pools_for(scenario, prepared.profiles, prepared.groups)[0]
    once = build(spec, MAX_LEN)
    lengths = np.stack((once.prompt_tokens, once.output_tokens), axis=1).tolist()

    def ours(rate: float) -> bool:
        at = replace(spec, rate=rate)
        ready = prepare(replace(scenario, workload=at))
        return report_of(ready, run(ready)).queueing_s.p99 <= DELAY_S

    found = [highest_rate(ours, arguments.rate, _WIDTH, 2.0)[0]]
    for constants in _CONSTANTS.values():
        with vidur(arguments, tp, pp, pool.num_blocks, constants) as asked:

            def theirs(rate: float, asked: Vidur = asked) -> bool:
                rows = zip((once.arrival_s / rate).tolist(), lengths, strict=True)
                reply = asked.ask({"requests": [[at, *both] for at, both in rows]})
                return bool(reply["p99_queueing_s"] <= DELAY_S)

            found.append(highest_rate(theirs, found[0], _WIDTH, 1.2)[0])
    shares = "  ".join(
        f"{name} {rate:.3g} (ours {found[0] / rate:.3f})"
        for name, rate in zip(_CONSTANTS, found[1:], strict=True)
    )
    print(
        f"tp{tp} pp{pp}  {workload}: ours {found[0]:.3g} requests/s, {pool.num_blocks} blocks; "
        f"Vidur's with {shares}",
        flush=True,
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--shapes", default="1x1,2x1,4x1,2x2")
    parser.add_argument("--workloads", default="chat-1m,arxiv-4k")
    parser.add_argument("--steps", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rate", type=float, default=1.0, help="to begin with, requests/s")
    arguments = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes.split(",")]
    for tp, pp in shapes if arguments.steps else ():
        steps(arguments, tp, pp)
    with tempfile.TemporaryDirectory(prefix="llmd-vidur-") as name:
        for tp, pp in shapes:
            file = Path(name) / f"tp{tp}pp{pp}.json"
            save_profile(profile_of(arguments, tp, pp), file)
            for workload in filter(None, arguments.workloads.split(",")):
                capacity(arguments, tp, pp, workload, file)


if __name__ == "__main__":
    main()
