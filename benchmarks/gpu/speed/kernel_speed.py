"""How near single kernels come to the device's limits."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.timing import seconds
from daemon.engine.cuda import triton as kernels


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured; attention has the heads of Llama 3 8B and blocks of 16 tokens."""

    decodes: tuple[tuple[int, int], ...]  # (rows, context of each)
    prefills: tuple[tuple[int, int], ...]  # (start, count) of one row
    pool_bytes: int  # layers take turns, so that no call finds its keys in the device's cache
    repeats: int


FULL = Sizes(
    decodes=((1, 1024), (1, 8192), (1, 65_536), (32, 1024), (32, 8192), (128, 1024), (256, 1024)),
    prefills=((0, 4096), (3584, 512), (16_384, 2048)),
    pool_bytes=512 << 20,
    repeats=20,
)
TINY = Sizes(
    decodes=((2, 40),),
    prefills=((3, 20),),
    pool_bytes=1,
    repeats=1,
)

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
TOKEN_BYTES = 2 * KV_HEADS * HEAD_DIM * 2  # of one layer


def kernel_figures(job: Job) -> Iterator[Figure]:
    """Bandwidth of decode, arithmetic rate of prefill."""
    device, limits, sizes = job.device, job.limits, TINY if job.tiny else FULL
    for rows, context in sizes.decodes:
        rate = _decode_rate(device, sizes, rows, context)
        name = f"decode attention {rows} x {context} tokens"
        yield Figure(name, rate / 1e9, "GB/s", limits.bytes_per_s / 1e9)
    for start, count in sizes.prefills:
        rate = _prefill_rate(device, sizes, start, count)
        name = f"prefill attention {start} + {count} tokens"
        yield Figure(name, rate / 1e12, "TFLOP/s", limits.operations_per_s / 1e12)


def _layers(sizes: Sizes, tokens: int) -> int:
    return max(2, min(64, -(-sizes.pool_bytes // (tokens * TOKEN_BYTES))))


def _pool(device: str, layers: int, rows: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A full cache and its scattered block tables."""
    each = -(-context // BLOCK_SIZE)
    shape = (rows * each, layers, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    cache = torch.randn(shape, dtype=torch.bfloat16, device=device)
    order = torch.randperm(rows * each, device=device).to(torch.int32)
    return cache, order.view(rows, each)


def _decode_rate(device: str, sizes: Sizes, rows: int, context: int) -> float:
    """Bytes of keys and values read a second."""
    layers = _layers(sizes, rows * context)
    cache, tables = _pool(device, layers, rows, context)
    query = torch.randn(rows, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    lens = torch.full((rows,), context, dtype=torch.int32, device=device)

    def attend() -> None:
        for layer in range(layers):
            kernels.paged_decode_attention(query, cache, layer, tables, lens, HEAD_DIM**-0.5)

    return layers * rows * context * TOKEN_BYTES / seconds(attend, device, sizes.repeats)


def _prefill_rate(device: str, sizes: Sizes, start: int, count: int) -> float:
    """Operations a second, of the pairs that causality leaves."""
    layers = _layers(sizes, start + count)
    cache, tables = _pool(device, layers, 1, start + count)
    query = torch.randn(count, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    starts, counts, offsets = (
        torch.tensor(column, dtype=torch.int32, device=device)
        for column in ([start], [count], [0, count])
    )

    def attend() -> None:
        for layer in range(layers):
            kernels.paged_prefill_attention(
                query, cache, layer, tables, starts, counts, offsets, HEAD_DIM**-0.5
            )

    pairs = count * start + count * (count + 1) / 2
    return layers * 4 * pairs * HEADS * HEAD_DIM / seconds(attend, device, sizes.repeats)
