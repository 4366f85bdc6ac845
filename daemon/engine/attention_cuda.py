"""Paged attention through the Triton kernels."""

import numpy as np
import torch

from daemon.engine.kernels import paged_decode_attention, paged_prefill_attention
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.wire.columns import Column


class CudaAttention:
    """One step over a batch: single-token rows by the decode kernel, longer ones by prefill's."""

    def __init__(self, batch: FlatBatch, cache: KVCache) -> None:
        self._cache = cache
        self._device = cache.blocks.device
        self._written = cache.row_of(self._upload(batch.blocks), self._upload(batch.offsets))
        self._decode = batch.single_rows
        self._prefill = batch.chunk_rows
        self._decode_tokens = self._upload(batch.row_offsets[self._decode].astype(np.int64))
        self._decode_tables = self._upload(batch.block_tables[self._decode])
        self._context_lens = self._upload(batch.starts[self._decode] + 1)
        self._prefill_tables = self._upload(batch.block_tables[self._prefill])
        self._starts = self._upload(batch.starts[self._prefill])
        self._counts = self._upload(batch.counts[self._prefill])
        self._row_offsets = self._upload(batch.row_offsets[self._prefill])

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """See `daemon.engine.attention.PagedAttention`."""
        cache = self._cache
        cache.write(layer, self._written, key, value)
        query = query.contiguous()
        if not len(self._prefill):
            return self._attend_singles(layer, query, scale)
        output = paged_prefill_attention(
            query,
            cache.blocks,
            layer,
            self._prefill_tables,
            self._starts,
            self._counts,
            self._row_offsets,
            scale,
        )
        if len(self._decode):
            singles = self._attend_singles(layer, query[self._decode_tokens], scale)
            output[self._decode_tokens] = singles
        return output

    def _attend_singles(self, layer: int, query: torch.Tensor, scale: float) -> torch.Tensor:
        return paged_decode_attention(
            query, self._cache.blocks, layer, self._decode_tables, self._context_lens, scale
        )

    def _upload(self, column: Column) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(self._device, non_blocking=True)
