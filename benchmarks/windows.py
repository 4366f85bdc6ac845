"""Attention through a window beside attention to all, by the length of the context, on this CPU.

One layer's attention of single tokens over a paged cache, by the compiled kernels, in the thread's
own CPU time; medians of rounds that alternate between the lengths.
    python -m benchmarks.windows [--window 1024] [--lengths 1024 2048 8192] [--rows 8] [--rounds 30]
                               [--head-dim 128]
"""

import argparse
import statistics
import time

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch, flatten
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant
from daemon.engine.model.backend import choose_backend
from daemon.engine.verify.model.kept import processor
from daemon.state.batch import Batch
from daemon.wire.columns import int32

BLOCK_SIZE, HEADS, KV_HEADS = 16, 8, 4


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 8192])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--head-dim", type=int, default=128)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    variants = {"all": FULL, "window": AttentionVariant(asked.window)}
    taken: dict[tuple[str, int], list[float]] = {}
    cells = [(length, _step(length, asked.rows, asked.head_dim)) for length in asked.lengths]
    for _ in range(asked.rounds):
        for length, (cache, batch) in cells:
            for name, variant in variants.items():
                taken.setdefault((name, length), []).append(_once(cache, batch, variant))
    first = statistics.median(taken["window", asked.lengths[0]])
    cpu = (processor() or "unknown processor").split(" +")[0]
    print(f"{cpu}, window {asked.window}, {asked.rows} rows, heads of {asked.head_dim}, us")
    for (name, length), times in sorted(taken.items()):
        middle = statistics.median(times)
        low, high = np.quantile(times, (0.1, 0.9))
        print(
            f"{name:8}{length:8,}{1e6 * middle:10,.0f} ({1e6 * low:,.0f}-{1e6 * high:,.0f})"
            f"{middle / first:8.2f} of the window's at {asked.lengths[0]:,}"
        )


def _step(length: int, num_rows: int, head_dim: int) -> tuple[PagedKV, FlatBatch]:
    """Rows of one token each behind a context of `length`."""
    blocks = -(-length // BLOCK_SIZE)
    cache = PagedKV(
        num_rows * blocks, 1, BLOCK_SIZE, KV_HEADS, head_dim, torch.float32, torch.device("cpu")
    )
    cache.blocks.normal_()
    tables = int32(range(num_rows * blocks)).reshape(num_rows, blocks)
    batch = Batch(
        instance=0,
        step=0,
        slots=int32(range(num_rows)),
        starts=int32([length - 1] * num_rows),
        counts=int32([1] * num_rows),
        samples=np.ones(num_rows, np.uint8),
        fed=np.ones(num_rows, np.uint8),
        table_slots=int32(),
        table_indices=int32(),
        table_blocks=int32(),
    )
    return cache, flatten(batch, int32([1] * num_rows), tables, BLOCK_SIZE)


def _once(cache: PagedKV, batch: FlatBatch, variant: AttentionVariant) -> float:
    """The thread's CPU time of one layer's attention, in seconds."""
    count = len(batch.tokens)
    heads, head_dim = (HEADS, KV_HEADS, KV_HEADS), cache.blocks.shape[5]
    query, key, value = (torch.randn(count, number, head_dim) for number in heads)
    attend = _BACKEND.attend(batch, cache)
    began = time.thread_time()
    attend(0, query, key, value, head_dim**-0.5, variant)
    return time.thread_time() - began


_BACKEND = choose_backend(torch.device("cpu"), torch.float32)

if __name__ == "__main__":
    main()
