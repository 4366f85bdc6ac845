"""Swap copies against plain copies of pinned memory."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.timing import seconds
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.link import SwapLink, swap_link
from daemon.protocol.worker import Copied
from daemon.wire.columns import int32
from tests.gpu.swap_checks import plan


@dataclass(frozen=True, slots=True)
class Case:
    """The shape of a model's blocks, and how many are swapped."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    blocks: int  # on their way at a time, in each direction
    repeats: int


FULL = (Case("Llama 3 8B", 32, 8, 128, 256, 10), Case("135M", 30, 3, 64, 1024, 10))
TINY = (Case("tiny", 2, 1, 16, 4, 2),)


def swap_figures(job: Job) -> Iterator[Figure]:
    """Each case out, in and both ways at once, plain and int8, in bytes of KV a second.

    The first case's plain copies are what the goal is about.
    """
    for number, case in enumerate(TINY if job.tiny else FULL):
        for compress in (False, True):
            counts = number == 0 and not compress
            yield from _figures(job.device, case, compress, "swap" if counts else "")


def _figures(device: str, case: Case, compress: bool, key: str) -> Iterator[Figure]:
    count = case.blocks
    shape = (case.layers, 16, case.kv_heads, case.head_dim)
    cache = PagedKV(3 * count, *shape, torch.bfloat16, torch.device(device))
    link = swap_link(cache, 2 * count, compress)
    assert link is not None
    size_bytes = count * cache.block_bytes
    # Device blocks lie apart, as they do after a while; the host pool's are still in order.
    apart = np.random.default_rng(0).permutation(2 * count).astype(np.int32)
    out = apart[:count], int32(range(count))
    back = int32(range(count, 2 * count)), apart[count:]
    copied: SimpleQueue[Copied | Exception] = SimpleQueue()
    link.listen(copied.put, copied.put)
    runs = [_run(link, copied, step, out, None) for step in range(case.repeats)]
    ways = [_run(link, copied, step, None, back) for step in range(case.repeats)]
    both = [_run(link, copied, step, out, back) for step in range(case.repeats)]
    link.close()
    kind = f"{case.name} {'int8' if compress else 'plain'}"
    limits = (None, None, None) if compress else _pinned_rates(device, link.pool.rows, case.repeats)
    each = f"{cache.block_bytes / 2**20:.2f} MiB a block"
    for way, times, limit in (
        ("out", [one.out_s for one, _ in runs], limits[0]),
        ("in", [one.in_s for one, _ in ways], limits[1]),
    ):
        rate, raw = size_bytes / statistics.median(times) / 1e9, {"bytes": size_bytes, "s": times}
        yield Figure(f"swap {way} {kind}", rate, "GB/s", limit, each, key, raw)
    times = [max(one.out_s, one.in_s) for one, _ in both]
    rate, raw = 2 * size_bytes / statistics.median(times) / 1e9, {"bytes": size_bytes, "s": times}
    yield Figure(f"swap both ways {kind}", rate, "GB/s", limits[2], raw=raw)
    ordering_s = statistics.median(order_s for _, order_s in runs)
    yield Figure(f"swap order {kind}", ordering_s / count * 1e6, "us/block")


Pairs = tuple[np.ndarray, np.ndarray]


def _run(
    link: SwapLink,
    copied: "SimpleQueue[Copied | Exception]",
    step: int,
    outs: Pairs | None,
    ins: Pairs | None,
) -> tuple[Copied, float]:
    """What a plan's copies took, and how long the thread that ordered them was busy."""
    began = time.perf_counter()
    link.order(plan(step, outs, ins))
    order_s = time.perf_counter() - began
    answer = copied.get()
    if isinstance(answer, Exception):
        raise answer
    return answer, order_s


def _pinned_rates(device: str, host: torch.Tensor, repeats: int) -> tuple[float, float, float]:
    """GB/s of one copy of half the host pool: to the host, from it, and both at once."""
    out, back = host[: len(host) // 2], host[len(host) // 2 :]
    there = [torch.empty(out.shape, dtype=out.dtype, device=device) for _ in range(2)]

    def out_copy() -> None:
        out.copy_(there[0], non_blocking=True)

    def back_copy() -> None:
        there[1].copy_(back, non_blocking=True)

    out_s, in_s = (seconds(work, device, repeats) for work in (out_copy, back_copy))
    both_s = seconds(_beside(device, out_copy, back_copy), device, repeats)
    size = out.nbytes / 1e9
    return size / out_s, size / in_s, 2 * size / both_s


def _beside(device: str, *works: Callable[[], None]) -> Callable[[], None]:
    """Each on a stream of its own; the current one goes on when all are done."""
    if not device.startswith("cuda"):

        def one_by_one() -> None:
            for work in works:
                work()

        return one_by_one
    streams = [torch.cuda.Stream(device) for _ in works]

    def together() -> None:
        current = torch.cuda.current_stream(device)
        for stream, work in zip(streams, works, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                work()
        for stream in streams:
            current.wait_stream(stream)

    return together
