"""Paged attention through the Triton kernels."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.upload import upload_all
from daemon.engine.cuda.triton import paged_decode_attention, paged_prefill_attention, write_kv
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant


@dataclass(frozen=True, slots=True)
class DeviceSingles:
    """Rows of one token each, on the device."""

    tokens: torch.Tensor | None  # int64 [S] index of their tokens; None: there are no others
    tables: torch.Tensor  # int32 [S, blocks]
    lens: torch.Tensor  # int32 [S] tokens to attend to, the new one included


@dataclass(frozen=True, slots=True)
class DeviceChunks:
    """Rows of several tokens, on the device."""

    tables: torch.Tensor  # int32 [C, blocks]
    starts: torch.Tensor  # int32 [C]
    counts: torch.Tensor  # int32 [C]
    row_offsets: torch.Tensor  # int32 [C]


class CudaAttention:
    """One step over a batch: single-token rows by the decode kernel, longer ones by prefill's.

    `blocks`, `offsets` int32 [T] say where each token's key and value belong; a block below 0 is
    nowhere.
    """

    def __init__(
        self,
        cache: PagedKV,
        blocks: torch.Tensor,
        offsets: torch.Tensor,
        singles: DeviceSingles | None,
        chunks: DeviceChunks | None = None,
    ) -> None:
        self.cache = cache
        self.blocks, self.offsets = blocks, offsets
        self._singles, self._chunks = singles, chunks

    @classmethod
    def of(cls, batch: FlatBatch, cache: PagedKV) -> Self:
        """The attention of a batch that lies on the host."""
        single, chunk = batch.single_rows, batch.chunk_rows
        blocks, offsets, tokens, single_tables, lens, tables, *rest = upload_all(
            [
                batch.blocks.astype(np.int32),
                batch.offsets.astype(np.int32),
                batch.row_offsets[single].astype(np.int64),
                batch.block_tables[single],
                batch.starts[single] + np.int32(1),
                batch.block_tables[chunk],
                batch.starts[chunk],
                batch.counts[chunk],
                batch.row_offsets[chunk],
            ],
            cache.blocks.device,
        )
        chosen = tokens if len(chunk) else None
        singles = DeviceSingles(chosen, single_tables, lens) if len(single) else None
        return cls(
            cache, blocks, offsets, singles, DeviceChunks(tables, *rest) if len(chunk) else None
        )

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
        if not variant.shared:
            self._write(layer, *(_dense_heads(states) for states in (key, value)))
        return self.attend(layer, _dense_heads(query), scale, variant)

    def attend(
        self, layer: int, query: torch.Tensor, scale: float, variant: AttentionVariant = FULL
    ) -> torch.Tensor:
        """Attention of `query` [T, heads, head_dim], whose keys and values are in the cache."""
        if self._chunks is None:
            return self._attend_singles(layer, query, scale, variant)
        output = self._attend_chunks(self._chunks, layer, query, scale, variant)
        if self._singles is not None and self._singles.tokens is not None:
            tokens = self._singles.tokens
            output[tokens] = self._attend_singles(layer, query[tokens], scale, variant)
        return output

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        cache = self.cache
        write_kv(key, value, cache.blocks, layer, self.blocks, self.offsets, cache.scales)

    def _attend_chunks(
        self,
        chunks: DeviceChunks,
        layer: int,
        query: torch.Tensor,
        scale: float,
        variant: AttentionVariant,
    ) -> torch.Tensor:
        """A new tensor like `query`, with the chunks' tokens written."""
        return paged_prefill_attention(
            query,
            self.cache.blocks,
            layer,
            chunks.tables,
            chunks.starts,
            chunks.counts,
            chunks.row_offsets,
            scale,
            kv_scales=self.cache.scales,
            variant=variant,
        )

    def _attend_singles(
        self, layer: int, query: torch.Tensor, scale: float, variant: AttentionVariant
    ) -> torch.Tensor:
        assert self._singles is not None
        return paged_decode_attention(
            query,
            self.cache.blocks,
            layer,
            self._singles.tables,
            self._singles.lens,
            scale,
            kv_scales=self.cache.scales,
            variant=variant,
        )


def _dense_heads(states: torch.Tensor) -> torch.Tensor:
    """States whose numbers of a head lie next to each other, as the kernels read them."""
    return states if states.stride(-1) == 1 else states.contiguous()
