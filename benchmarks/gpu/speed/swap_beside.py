"""What swap copies at the link's full speed cost the steps that are computed beside them."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.engines import BLOCK_SIZE, Sizes, config_of, engine_of
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.plans import GREEDY, Plans, Swaps
from benchmarks.gpu.speed.steady import EXTRA, steady
from daemon.engine.step.step import Engine
from daemon.protocol.worker import Copied
from daemon.wire.columns import Column, int32


@dataclass(frozen=True, slots=True)
class Case:
    """Rows that decode, and the blocks on their way beside each step, in each direction."""

    batch: int
    context: int
    steps: int
    rounds: int
    most_blocks: int
    max_len: int

    @property
    def plans(self) -> int:
        """Steps of one run."""
        return self.steps + EXTRA


FULL = Case(32, 1024, 96, 3, 256, 8192)
TINY = Case(2, 20, 4, 1, 4, 64)
WAYS = ("none", "out", "in", "both")


@torch.inference_mode()
def swap_beside_figures(job: Job) -> Iterator[Figure]:
    """The slowdown of decode steps while blocks go out, come in, and both."""
    case, config = TINY if job.tiny else FULL, config_of(job.tiny)
    capacity = case.context + case.plans
    used = case.batch * -(-capacity // BLOCK_SIZE)
    room = 2 * case.most_blocks
    sizes = Sizes(case.batch, case.max_len, used + room, 512, num_host_blocks=room)
    engine = engine_of(config, job.device, sizes)
    assert engine.swap is not None
    copied: SimpleQueue[Copied | Exception] = SimpleQueue()
    engine.swap.listen(copied.put, copied.put)
    alone_s = _step_s(engine, case, capacity, None)
    blocks = _blocks_a_step(engine, case, alone_s, job.limits.out_bytes_per_s)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(case.rounds):  # in turns, so that a slow moment meets all of them
        for way in WAYS:
            times[way].append(_step_s(engine, case, capacity, _swaps(way, blocks, used)))
            orders = 0 if way == "none" else case.plans
            rates[way].append(_rate(copied, orders, engine.cache.block_bytes))
    engine.swap.close()
    for way in WAYS[1:]:
        slower = statistics.median(times[way]) / statistics.median(times["none"]) - 1
        gb_per_s = statistics.median(rates[way]) / 1e9
        note = f"goal 1; {blocks} blocks each way a step, {gb_per_s:.1f} GB/s while copying"
        raw = {"step_s": times[way], "alone_s": times["none"], "bytes_per_s": rates[way]}
        name = f"decode batch {case.batch} beside swap {way}, slower by"
        yield Figure(name, 100 * slower, "%", note=note, raw=raw)


def _blocks_a_step(engine: Engine, case: Case, step_s: float, link_bytes_per_s: float) -> int:
    """As many as the link just moves while a step is computed."""
    moved = link_bytes_per_s * step_s / engine.cache.block_bytes
    return max(1, min(case.most_blocks, int(moved)))


def _swaps(way: str, count: int, first: int) -> Swaps | None:
    """Blocks that no row uses, scattered; half of them go out, the others come in."""
    if way == "none":
        return None
    none = int32()
    blocks = (first + np.random.default_rng(0).permutation(2 * count)).astype(np.int32)
    outs = blocks[:count], int32(range(count))
    ins = int32(range(count, 2 * count)), blocks[count:]
    empty: tuple[Column, Column] = (none, none)
    return Swaps(*(empty if way == "in" else outs), *(empty if way == "out" else ins))


def _step_s(engine: Engine, case: Case, capacity: int, swaps: Swaps | None) -> float:
    plans = Plans(case.batch, capacity, BLOCK_SIZE, GREEDY, case.context)
    starts = range(case.context, case.context + case.plans)
    times = steady(engine, [plans.decode(start, swaps) for start in starts])
    engine.run(plans.leave())
    return times.step_s


def _rate(copied: "SimpleQueue[Copied | Exception]", orders: int, block_bytes: int) -> float:
    """Bytes a second in the busier direction while blocks were copied, once all of them are."""
    moved, seconds = 0, 0.0
    for _ in range(orders):
        answer = copied.get()
        if isinstance(answer, Exception):
            raise answer
        moved += max(answer.num_out, answer.num_in) * block_bytes
        seconds += max(answer.out_s, answer.in_s)
    return moved / seconds if seconds else 0.0
