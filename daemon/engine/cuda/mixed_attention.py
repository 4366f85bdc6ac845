"""Paged attention of which torch computes a part; for steps that are launched, not captured."""

import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.cuda.attention import CudaAttention, DeviceChunks
from daemon.engine.families import DECODE, PREFILL, WRITE, ByTorch
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers import attention_torch
from daemon.engine.layers.attention import AttentionVariant


def mixed(batch: FlatBatch, cache: PagedKV, by_torch: ByTorch) -> CudaAttention:
    """The attention of a batch that lies on the host."""
    attention = MixedAttention.of(batch, cache)
    attention.replace(batch, by_torch)
    return attention


class MixedAttention(CudaAttention):
    """See `CudaAttention`; before it is called, `replace` says what torch computes."""

    _rows: torch.Tensor | None = None
    _torch_singles: attention_torch.Singles | None = None
    _torch_chunks: attention_torch.Chunks | None = None

    def replace(self, batch: FlatBatch, by_torch: ByTorch) -> None:
        """Have torch compute these families."""
        if WRITE in by_torch:
            self._rows = self.cache.row_of(self.blocks.long(), self.offsets.long())
        if DECODE in by_torch and len(batch.single_rows):
            self._torch_singles = attention_torch.Singles(batch, self.cache)
        if PREFILL in by_torch:
            # From the cache alone: the kernel that writes keys returns none that are rotated.
            self._torch_chunks = attention_torch.Chunks(batch, self.cache, cached=True)

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if self._rows is None:
            super()._write(layer, key, value)
        else:
            self.cache.write(layer, self._rows, key, value)

    def _attend_chunks(
        self,
        chunks: DeviceChunks,
        layer: int,
        query: torch.Tensor,
        scale: float,
        variant: AttentionVariant,
    ) -> torch.Tensor:
        if self._torch_chunks is None:
            return super()._attend_chunks(chunks, layer, query, scale, variant)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        self._torch_chunks.attend(layer, query, None, scale, output, variant)
        return output

    def _attend_singles(
        self, layer: int, query: torch.Tensor, scale: float, variant: AttentionVariant
    ) -> torch.Tensor:
        if self._torch_singles is None:
            return super()._attend_singles(layer, query, scale, variant)
        return self._torch_singles.attend(layer, query, scale, variant)
