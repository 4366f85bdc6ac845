"""Blocks on their way out of a pool and back, against torch."""

import numpy as np
import torch

from daemon.engine.cuda import triton as kernels
from daemon.engine.kv import host_int8 as packing
from daemon.engine.transfer import gpu_rows, rows
from daemon.engine.transfer.layout import WHOLE, layout_of
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.compare import WrongError, alike, equal

_BLOCKS = [5, 1, 2]
_FILLED = 3
"""Tokens of the second of these blocks; the others are full."""
_HALF_LIMIT = 2e-3
"""Limit for float16 numbers."""
_OTHER_STEPS = 0.02
"""Share of quanta that may be one more or less than torch's: numbers just between two steps."""


def try_packing(bench: Bench) -> None:
    """Whole blocks and one that is filled in part, packed and unpacked."""
    if not bench.subject.compress:
        return
    cache = bench.pool(6)
    cache.blocks.copy_(bench.normal(*cache.blocks.shape))
    index = bench.column(_BLOCKS, torch.int64)
    fills = bench.column([cache.block_size, _FILLED, cache.block_size], torch.int64)
    room = (len(_BLOCKS), packing.packed_bytes(cache.blocks.shape))
    ours, theirs = torch.zeros((2, *room), dtype=torch.uint8, device=bench.device)
    kernels.pack_blocks(cache.blocks, index, fills, ours)
    packing.pack_blocks(cache.blocks, index, fills, theirs)
    found, expected = (packing.parts(packed, cache.blocks.shape) for packed in (ours, theirs))
    alike("scales", found.scales, expected.scales, _HALF_LIMIT)
    alike("zeros", found.zeros, expected.zeros, _HALF_LIMIT)
    steps = (found.quanta.int() - expected.quanta.int()).abs()
    steps[1, :, :, _FILLED:] = 0
    if int(steps.max()) > 1 or float(steps.float().mean()) > _OTHER_STEPS:
        raise WrongError(f"packed blocks: up to {int(steps.max())} steps from torch's")
    back = [torch.zeros_like(cache.blocks) for _ in range(2)]
    kernels.unpack_blocks(ours, back[0], index)
    packing.unpack_blocks(ours, back[1], index)
    alike("unpacked blocks", back[0], back[1], bench.limit)


def try_moves(bench: Bench) -> None:
    """All of some blocks, and one layer's part of them, to a slot and back to another pool."""
    source, target = bench.pool(6), bench.pool(6)
    source.raw.random_(0, 256)
    layout, blocks = layout_of(source), np.array(_BLOCKS, np.int32)
    # On the host torch's are the reference: a device's own may be what is tried.
    host = source.raw.cpu()
    for layer in (WHOLE, 1):
        spans = layout.spans(layer)
        slot = source.raw.new_zeros(len(blocks) * layout.size(layer))
        expected = torch.zeros(len(slot), dtype=torch.uint8)
        gpu_rows.gather(source.raw, spans, blocks, slot)
        rows.gather(host, spans, blocks, expected)
        equal("gathered bytes", slot.cpu(), expected)
        wanted = target.raw.cpu()
        gpu_rows.scatter(slot, target.raw, spans, blocks)
        rows.scatter(expected, wanted, spans, blocks)
        equal("scattered bytes", target.raw.cpu(), wanted)
