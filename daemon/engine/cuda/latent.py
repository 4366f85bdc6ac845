"""Latent attention on a GPU: single-token rows by a Triton kernel, chunks by torch."""

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.upload import upload_all
from daemon.engine.cuda.triton import paged_row_attention
from daemon.engine.families import DECODE, ByTorch
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant, PagedAttention
from daemon.engine.layers.attention_torch import Chunks, TorchAttention, attended_shape


def row_attention(batch: FlatBatch, cache: PagedKV, by_torch: ByTorch) -> PagedAttention:
    """One step's attention to rows; torch's where the kernel is not trusted or rows are 8 bits."""
    if DECODE in by_torch or cache.scales is not None:
        return TorchAttention(batch, cache)
    return CudaLatentAttention(batch, cache)


class CudaLatentAttention:
    """One step over a batch, for a pool of rows in the type of states."""

    def __init__(self, batch: FlatBatch, cache: PagedKV) -> None:
        self._cache = cache
        self._chunks = Chunks(batch, cache)
        single = batch.single_rows
        blocks, offsets, self._tokens, self._tables, self._lens = upload_all(
            [
                batch.blocks.astype(np.int64),
                batch.offsets.astype(np.int64),
                batch.row_offsets[single].astype(np.int64),
                batch.block_tables[single],
                batch.starts[single] + np.int32(1),
            ],
            cache.blocks.device,
        )
        self._written = cache.row_of(blocks, offsets)

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        variant: AttentionVariant = FULL,
    ) -> torch.Tensor:
        """See `daemon.engine.layers.attention.PagedAttention`."""
        latent = variant.latent
        assert latent is not None, "a pool of rows is read by latent attention alone"
        self._cache.write(layer, self._written, key, value)
        output = query.new_empty(attended_shape(query, variant))
        if len(self._tokens):
            absorbed = latent.absorbed(query[self._tokens])
            parts = absorbed[..., : latent.rank], absorbed[..., latent.rank :]
            rows = self._cache.blocks, layer, self._tables, self._lens
            output[self._tokens] = latent.emitted(paged_row_attention(*parts, *rows, scale))
        self._chunks.attend(layer, query, (key, value), scale, output, variant)
        return output
