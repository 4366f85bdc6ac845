"""Parts of blocks to slots and back, in plain torch; `gpu_rows` is the same by a kernel.

A slot, uint8 [n * bytes of a part], holds the same part of n blocks, one after another; of a part
that lies in several spans of a block, a block's spans follow each other. Pools are uint8 [block,
block_bytes], blocks int32 [n].
"""

from collections.abc import Sequence

import numpy as np
import torch

from daemon.engine.handoff.layout import ByteSpan
from daemon.wire.columns import Column

Spans = Sequence[ByteSpan]


def gather(pool: torch.Tensor, spans: Spans, blocks: Column, slot: torch.Tensor) -> None:
    """Copy spans of blocks to a slot."""
    index, rows, packed = _index(blocks, pool.device), slot.view(len(blocks), -1), 0
    if spans[0].size == pool.shape[1]:  # whole blocks: each byte is read and written once
        torch.index_select(pool, 0, index, out=rows)
        return
    for start, size in spans:
        rows[:, packed : packed + size] = pool[:, start : start + size].index_select(0, index)
        packed += size


def scatter(slot: torch.Tensor, pool: torch.Tensor, spans: Spans, blocks: Column) -> None:
    """Copy a slot to spans of blocks."""
    index, rows, packed = _index(blocks, pool.device), slot.view(len(blocks), -1), 0
    for start, size in spans:
        pool[:, start : start + size].index_copy_(0, index, rows[:, packed : packed + size])
        packed += size


def _index(blocks: Column, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(blocks.astype(np.int64)).to(device)
