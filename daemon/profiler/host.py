"""What the host itself can do: copies of KV blocks between buffers, and its dense peak, roughly."""

import time
from collections.abc import Callable

import numpy as np

_COPIED_BYTES = 128 << 20  # beyond any cache
_REPEATS = 5
_MATRIX = 1536


def copy_bytes_per_s(block_bytes: int) -> float:
    """Bytes per second of copying whole blocks in no order between two buffers of host memory."""
    num_blocks = max(2, _COPIED_BYTES // max(1, block_bytes))
    source = np.ones((num_blocks, block_bytes), np.uint8)
    target = np.zeros_like(source)
    order = np.random.default_rng(0).permutation(num_blocks)

    def copy() -> None:
        for place, block in enumerate(order):
            target[place] = source[block]

    return source.nbytes / _fastest_s(copy)


def dense_flops() -> float:
    """Floating-point operations per second of a float32 product: about the peak of all cores.

    numpy's BLAS computes it, not the engine's kernels, so it is a denominator for MFU and no limit.
    """
    left = np.ones((_MATRIX, _MATRIX), np.float32)
    right = np.ones_like(left)
    product = np.empty_like(left)
    return 2.0 * _MATRIX**3 / _fastest_s(lambda: np.matmul(left, right, out=product))


def _fastest_s(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
