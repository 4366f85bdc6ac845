"""A decode step on a CPU by what holds its keys and values.

    GOMP_SPINCOUNT=3000 python -m benchmarks.cpu_kv      (threads spin as long as a worker's)

The embedded model, float32 weights, random keys and values in every block; a step is the worker's
whole one, from its plan to its answer. The ways take turns, so that what else the machine does
meets all of them. For each the least time of a step in ms, in brackets the median, and the least as
a multiple of the first way's:

float32      a float32 cache, read by the compiled kernels
int8, fp8    an 8-bit cache, read by the same
int8 torch   plain torch for all that is not a matrix product, as where numba is missing
"""

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
import torch

from daemon.config.paths import default_cache
from daemon.engine.kv.pool import PagedKV
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import torch_backend
from daemon.engine.process import keep_compiled
from daemon.engine.step.step import Engine
from daemon.engine.verify.model.kept import TrialVerdict
from daemon.engine.worker.start import assemble
from daemon.models.embedded import model_folder
from daemon.protocol.worker import Load
from tests.engine.driver import Driver

BLOCK_SIZE = 16
WAYS = {
    "float32": ("", True),
    "int8": ("int8", True),
    "fp8": ("fp8", True),
    "int8 torch": ("int8", False),
}
"""Each way's `kv_dtype`, and whether the kernels are compiled ones."""


def main() -> None:
    """Print a row for each number of sequences and each context."""
    parser = argparse.ArgumentParser(prog="cpu_kv", description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=9, help="steps of each way")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS))
    arguments = parser.parse_args()
    keep_compiled(default_cache())
    ways = {name: WAYS[name] for name in arguments.ways}
    print("| sequences, context |", " | ".join(ways), "|")
    print("| ---" * (len(ways) + 1), "|", sep="")
    most = max(arguments.sequences), max(arguments.contexts) + 2 * arguments.rounds
    with torch.inference_mode():
        engines = {name: _engine(*way, *most) for name, way in ways.items()}
        for context in arguments.contexts:
            for count in arguments.sequences:
                print(_row(engines, count, context, arguments.rounds), flush=True)


def _row(engines: dict[str, Engine], count: int, context: int, rounds: int) -> str:
    steps = {name: _Steps(engine, count, context) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, one in steps.items():
            elapsed_s = one.step()
            if turn:  # the first meets cold caches, and programs that are not written
                times[name].append(1e3 * elapsed_s)
    for one in steps.values():
        one.leave()
    first = min(times[next(iter(times))])
    cells = [
        f"{min(found):.1f} ({median(found):.1f}), {min(found) / first:.2f}"
        for found in times.values()
    ]
    return f"| {count}, {context} | " + " | ".join(cells) + " |"


class _Steps:
    """Sequences that have `context` tokens in an engine's cache, and decode."""

    def __init__(self, engine: Engine, count: int, context: int) -> None:
        self._engine = engine
        blocks = np.random.default_rng(0).permutation(engine.cache.num_blocks).tolist()
        self._plans = Driver(BLOCK_SIZE, blocks)
        self._rows = [self._plans.add(slot, [1] * (context + 1)) for slot in range(count)]
        for row in self._rows:
            row.num_computed = context

    def step(self) -> float:
        """One token of each; how long that took, in seconds."""
        work = [(row, 1) for row in self._rows]
        plan = self._plans.plan(work)
        began = time.perf_counter()
        reply = self._engine.run(plan)
        elapsed_s = time.perf_counter() - began
        self._plans.take(work, reply)
        return elapsed_s

    def leave(self) -> None:
        """Give the slots back."""
        for row in self._rows:
            self._plans.leave(row)
        self._engine.run(self._plans.plan([]))


def _engine(kv_dtype: str, compiled: bool, max_slots: int, max_len: int) -> Engine:
    folder = model_folder("", default_cache())
    load = Load(
        model=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=max_slots * (-(-max_len // BLOCK_SIZE) + 1),
        max_slots=max_slots,
        max_len=max_len,
        max_batch_tokens=128,
        kv_dtype=kv_dtype,
    )
    model: Any = load_model(folder, load.dtype, torch.device("cpu"))
    backend = None if compiled else torch_backend()
    verdict = TrialVerdict(fused=True, compiled=compiled)
    engine = assemble(model, shape_here(folder), load, lambda *_: None, backend, verdict)
    _fill(engine.cache)
    return engine


def _fill(cache: PagedKV) -> None:
    """Random keys and values in every block, the same ones in every so many."""
    some = min(64, cache.num_blocks)
    offsets = torch.arange(cache.block_size).repeat(some)
    rows = cache.row_of(torch.arange(some).repeat_interleave(cache.block_size), offsets)
    for layer in range(cache.num_layers):
        key, value = torch.randn(2, len(rows), *cache.blocks.shape[4:])
        cache.write(layer, rows, key, value)
    for first in range(some, cache.num_blocks, some):
        target = cache.raw[first : first + some]
        target.copy_(cache.raw[: len(target)])


if __name__ == "__main__":
    main()
