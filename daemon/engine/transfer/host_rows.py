"""Blocks of a worker's host pool on their way to another worker: as they are, or unpacked."""

import numpy as np
import torch

from daemon.engine.batch.streams import ThreadStream, WorkEvent
from daemon.engine.kv import host_int8 as packing
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.host_pool import HostPool
from daemon.engine.transfer.layout import WHOLE, Layout
from daemon.engine.transfer.rows import gather
from daemon.engine.transfer.sums import BlockSums, Summed
from daemon.wire.columns import Column

_ONE = np.zeros(1, np.int32)


class HostRows:
    """A thread that writes rows of a host pool, as blocks of the KV pool beside it, to memory."""

    def __init__(self, layout: Layout, pool: HostPool, cache: PagedKV) -> None:
        self._pool, self._spans = pool, layout.spans(WHOLE)
        self._sums = BlockSums(layout, torch.device("cpu"))
        self._block = torch.empty((1, *cache.blocks.shape[1:]), dtype=cache.blocks.dtype)
        self._stream = ThreadStream("transfer-host")

    def out(self, places: Column, slot: torch.Tensor, after: WorkEvent) -> Summed:
        """Write the rows at `places` int32 [n], or the layout's part of each, to a slot uint8 [n *
        bytes], behind `after`.

        The sums are of blocks that have not been in the slot yet.
        """
        values = torch.empty(len(places), dtype=torch.int64)

        def work() -> None:
            rows = slot.view(len(places), -1)
            for number, place in enumerate(places.tolist()):
                row = self._row(place)
                values[number : number + 1] = self._sums.of(row, self._spans, _ONE)
                gather(row, self._spans, _ONE, rows[number])

        self._stream.wait(after)
        self._stream.run(work)
        return Summed(self._stream.record(), values)

    def close(self) -> None:
        """Finish what is queued."""
        self._stream.close()

    def _row(self, place: int) -> torch.Tensor:
        """A block's bytes, uint8 [1, block_bytes]; the next call may write over them."""
        row = self._pool.rows[place : place + 1]
        if not self._pool.compressed:
            return row
        packing.unpack_blocks(row, self._block, torch.zeros(1, dtype=torch.int64))
        return self._block.view(1, -1).view(torch.uint8)
