"""The kernel that moves rows of bytes, built for GPUs that need not be there."""

import tempfile
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.kv.pool import zero_pages
from daemon.engine.transfer import gpu_rows
from daemon.engine.transfer.layout import ByteSpan
from tests.gpu.compiled.compile_checks import SHARED_LIMITS_BYTES
from tests.gpu.compiled.launches import compiled_for

NUM_BLOCKS, BLOCK_BYTES, LAYER_BYTES = 300, 2 << 20, 64 << 10
"""The shape of Llama 3 8B."""
WIDE_LOAD = "ld.global.v2.b64"


def move_compile_checks(generations: tuple[int, ...] = (80, 86, 89, 90)) -> Iterator[Check]:
    """It builds, reads 16 bytes at a time, and is compiled once for all layers and counts."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            yield from _built(generation)


def _built(generation: int) -> Iterator[Check]:
    name, limit = f"sm_{generation} move_rows", SHARED_LIMITS_BYTES[generation]
    # On the host, since tensors without memory have no addresses either.
    pool, size = zero_pages(NUM_BLOCKS * BLOCK_BYTES).view(-1, BLOCK_BYTES), LAYER_BYTES
    with compiled_for(generation) as launches:
        for move in (
            partial(gpu_rows.gather, pool),
            lambda spans, blocks, slot: gpu_rows.scatter(slot, pool, spans, blocks),
            lambda spans, blocks, _: gpu_rows.across(pool, spans, blocks, 1 << 44, blocks),
        ):
            for layer, count in ((1, 1), (0, 16), (31, 17), (2, 256)):
                slot = torch.empty(count * size, dtype=torch.uint8)
                move((ByteSpan(layer * size, size),), np.arange(count, dtype=np.int32), slot)
            kernels = launches.take()
            yield Check(name, max(kernel.metadata.shared for kernel in kernels), limit, "bytes")
            narrow = sum(WIDE_LOAD not in kernel.asm["ptx"] for kernel in kernels)
            yield Check(f"{name}, narrow loads", narrow, 0)
            again = len({kernel.hash for kernel in kernels}) - 1
            yield Check(f"{name}, compiled anew", again, 0)
