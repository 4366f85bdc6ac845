"""Checksums of blocks where they lie: of the bytes that leave one pool, and of those that arrive.

A sum is that of a part's words, each times the odd number of its place, modulo 2 ** 64. So it
differs wherever one word does, and with a probability of about 2 ** -63 it does not where several
do. Both ends compute it with the same operations of torch, each on the device of its own pool.
"""

from dataclasses import dataclass

import numpy as np
import torch

from daemon.engine.batch.streams import CudaStream, Stream, ThreadStream, WorkEvent
from daemon.engine.batch.upload import upload
from daemon.engine.transfer.layout import WHOLE, Layout
from daemon.engine.transfer.rows import Spans
from daemon.wire.columns import Column, Int64

_SEED = 20_481
_WORDS = {8: torch.int64, 4: torch.int32, 1: torch.uint8}
_PIECE_BYTES = 32 << 20
"""Bytes that a GPU gathers at a time."""


class BlockSums:
    """Sums of parts of blocks of a layout, for pools on one device."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._word_bytes, self._packs = layout.word_bytes, layout.part is not None
        count = layout.size(WHOLE) // self._word_bytes
        whole = np.iinfo(np.int64)
        drawn = np.random.default_rng(_SEED).integers(whole.min, whole.max, count, np.int64)
        self._factors = torch.from_numpy(drawn | 1).to(device)

    def of(self, pool: torch.Tensor, spans: Spans, blocks: Column) -> torch.Tensor:
        """Checksums int64 [n] of the blocks int32 [n] of a pool uint8 [block, block_bytes]."""
        sums = torch.zeros(len(blocks), dtype=torch.int64, device=pool.device)
        if not pool.is_cuda:  # in place, and what is read lies in a processor's cache
            for place, block in enumerate(blocks.tolist()):
                self._add(sums[place : place + 1], pool[block : block + 1], spans)
            return sums
        index = upload(blocks.astype(np.int64), pool.device)
        step = max(1, _PIECE_BYTES // pool.shape[1])
        for first in range(0, len(blocks), step):
            rows = pool.index_select(0, index[first : first + step])
            self._add(sums[first : first + step], rows, spans)
        return sums

    def _add(self, sums: torch.Tensor, rows: torch.Tensor, spans: Spans) -> None:
        """Add the sums of these rows [n, block_bytes] to `sums` [n]."""
        packed = 0
        for span in spans:
            octets = rows[:, span.start : span.start + span.size]
            if self._packs:  # other numbers of heads lie between them at the other end
                each = rows.stride(0), span.pitch or span.size, 1
                first = rows.storage_offset() + span.start
                shape = len(rows), span.num_pieces, span.size
                octets = rows.as_strided(shape, each, first).clone().view(len(rows), -1)
            words = octets.view(_WORDS[self._word_bytes])
            sums += (words * self._factors[packed : packed + words.shape[1]]).sum(1)
            packed += words.shape[1]


@dataclass(frozen=True, slots=True)
class Summed:
    """Sums that are being computed."""

    ended: WorkEvent
    values: torch.Tensor  # int64 [n] on the host, once `ended` is reached

    def read(self) -> Int64:
        """The sums; waits for them."""
        self.ended.synchronize()
        values: Int64 = self.values.numpy()
        return values


class Summer:
    """Sums of a pool's blocks, beside the steps and the copies."""

    def __init__(self, sums: BlockSums, pool: torch.Tensor) -> None:
        self._sums, self._pool = sums, pool
        self._on_gpu = pool.device.type == "cuda"
        self._stream: Stream = (
            CudaStream(torch.cuda.Stream(pool.device)) if pool.is_cuda else ThreadStream("sums")
        )

    def of(self, spans: Spans, blocks: Column, after: WorkEvent) -> Summed:
        """Begin to sum parts of blocks int32 [n] once `after` is reached."""
        values = torch.empty(len(blocks), dtype=torch.int64, pin_memory=self._on_gpu)

        def work() -> None:
            values.copy_(self._sums.of(self._pool, spans, blocks), non_blocking=True)

        self._stream.wait(after)
        self._stream.run(work)
        return Summed(self._stream.record(), values)

    def close(self) -> None:
        """Finish what is queued."""
        if isinstance(self._stream, ThreadStream):
            self._stream.close()
        else:
            self._stream.record().synchronize()
