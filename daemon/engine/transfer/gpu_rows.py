"""`rows` for a GPU's memory, on its current stream and of spans in one piece; from pool to pool."""

import numpy as np
import torch

from daemon.engine.batch.upload import upload, upload_all
from daemon.engine.cuda.triton.move import Rows, move_rows
from daemon.engine.transfer.layout import WHOLE, Layout
from daemon.engine.transfer.rows import Spans
from daemon.wire.columns import Column


def gather(pool: torch.Tensor, spans: Spans, blocks: Column, slot: torch.Tensor) -> None:
    """As `rows.gather`; the slot lies on the same device."""
    index, packed = upload(blocks.astype(np.int64), pool.device), 0
    for start, size, *_ in spans:
        source = Rows(pool.data_ptr() + start, pool.shape[1], index)
        target = Rows(slot.data_ptr() + packed, len(slot) // len(blocks))
        move_rows(source, target, size, len(blocks))
        packed += size


def scatter(slot: torch.Tensor, pool: torch.Tensor, spans: Spans, blocks: Column) -> None:
    """As `rows.scatter`; the slot lies on the same device."""
    index, packed = upload(blocks.astype(np.int64), pool.device), 0
    for start, size, *_ in spans:
        source = Rows(slot.data_ptr() + packed, len(slot) // len(blocks))
        target = Rows(pool.data_ptr() + start, pool.shape[1], index)
        move_rows(source, target, size, len(blocks))
        packed += size


def across(pool: torch.Tensor, spans: Spans, blocks: Column, address: int, targets: Column) -> None:
    """Copy spans of blocks to blocks `targets` of a pool of the same layout at `address`."""
    columns = [column.astype(np.int64) for column in (blocks, targets)]
    read, written = upload_all(columns, pool.device)
    for start, size, *_ in spans:
        source = Rows(pool.data_ptr() + start, pool.shape[1], read)
        target = Rows(address + start, pool.shape[1], written)
        move_rows(source, target, size, len(blocks))


def warm_up(layout: Layout, device: torch.device) -> None:
    """Compile and load the kernels for pools of this layout, before a transfer waits for them."""
    here, there, slot = torch.zeros((3, layout.block_bytes), dtype=torch.uint8, device=device)
    first = np.zeros(1, np.int32)
    for layer in (WHOLE, 0):
        spans, part = layout.spans(layer), slot[: layout.size(layer)]
        gather(here.unsqueeze(0), spans, first, part)
        scatter(part, there.unsqueeze(0), spans, first)
        across(here.unsqueeze(0), spans, first, there.data_ptr(), first)
