"""Makes the kernels of all candidate products at once, in several threads."""

import os
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton

from daemon.engine.cuda.block_implementations import MultipliedBlocks
from daemon.engine.cuda.candidates import ALIGNED, DeviceRoom
from daemon.engine.cuda.product_implementations import Strips, Tiles
from daemon.engine.cuda.triton.skinny import Scratch

_MAX_THREADS = 8


def compile_all(
    products: Iterable[Any], rows: Sequence[int], room: DeviceRoom, scratch: Scratch
) -> None:
    """Compile what the candidates of each product need, or load it from Triton's cache.

    One kernel takes half a second, and there are some forty of them.
    """
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    made: set[Hashable] = set()
    with ThreadPoolExecutor(threads) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        for product in products:
            weight, bias = product.held, product.bias
            for count in (count for count in rows if count <= product.max_rows):
                states = product.new_states(count)
                for way in product.candidates(count, room, scratch):
                    if isinstance(way, Strips | Tiles | MultipliedBlocks):
                        key = (_kernel(way, weight), bias is None, product.kind)
                        if key not in made:
                            made.add(key)
                            way(states, weight, bias, compile_only=True)


def _kernel(way: Strips | Tiles | MultipliedBlocks, weight: Any) -> Hashable:
    """Two ways with the same key need the same kernel."""
    out_features, in_features = weight.shape
    if isinstance(way, MultipliedBlocks):
        return way.tile, *(size % ALIGNED for size in (*weight.shape, weight.data.shape[1]))
    if isinstance(way, Strips):
        return way.strip, in_features, out_features % ALIGNED
    return way.tile, in_features % way.tile.depth == 0, out_features % ALIGNED
