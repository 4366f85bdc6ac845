"""Parts of blocks to slots and back, in plain torch; `gpu_rows` is the same by a kernel.

A slot, uint8 [n * bytes of a part], holds the same part of n blocks, one after another; of a part
that lies in several spans of a block, a block's spans and their pieces follow each other. Pools are
uint8 [block, block_bytes], blocks int32 [n].
"""

from collections.abc import Sequence

import torch

from daemon.engine.transfer.layout import ByteSpan
from daemon.wire.columns import Column

Spans = Sequence[ByteSpan]


def gather(pool: torch.Tensor, spans: Spans, blocks: Column, slot: torch.Tensor) -> None:
    """Copy spans of blocks to a slot."""
    rows, packed = slot.view(len(blocks), -1), 0
    for span in spans:
        for row, block in enumerate(blocks.tolist()):
            own = pieces(pool, block, span)
            rows[row, packed : packed + span.total].view(span.num_pieces, -1).copy_(own)
        packed += span.total


def scatter(slot: torch.Tensor, pool: torch.Tensor, spans: Spans, blocks: Column) -> None:
    """Copy a slot to spans of blocks. A copy for each: torch's indexed copies go byte by byte."""
    rows, packed = slot.view(len(blocks), -1), 0
    for span in spans:
        for row, block in enumerate(blocks.tolist()):
            own = rows[row, packed : packed + span.total].view(span.num_pieces, -1)
            pieces(pool, block, span).copy_(own)
        packed += span.total


def pieces(pool: torch.Tensor, block: int, span: ByteSpan) -> torch.Tensor:
    """A view of a span of a block, uint8 [count, size]."""
    first = pool.storage_offset() + block * pool.stride(0) + span.start
    return pool.as_strided((span.num_pieces, span.size), (span.pitch or span.size, 1), first)
