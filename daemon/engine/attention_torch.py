"""Paged attention in plain torch: the CPU's, and the reference for the kernels."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch


class TorchAttention:
    """One step over a batch whose single-token rows attend together, longer ones one by one."""

    def __init__(self, batch: FlatBatch, cache: KVCache) -> None:
        device = cache.blocks.device
        self._cache = cache
        blocks = torch.from_numpy(batch.blocks).to(device)
        self._written = cache.row_of(blocks, torch.from_numpy(batch.offsets).to(device))
        self._tables = torch.from_numpy(batch.block_tables).to(device).long()
        rows = zip(batch.row_offsets.tolist(), batch.starts.tolist(), batch.counts.tolist())
        self._singles: list[tuple[int, int, int]] = []
        self._chunks: list[tuple[int, int, int, int]] = []
        for row, (offset, start, count) in enumerate(rows):
            if count == 1:
                self._singles.append((row, offset, start + 1))
            else:
                self._chunks.append((row, offset, start, count))
        self._prepare_singles(device)

    def _prepare_singles(self, device: torch.device) -> None:
        if not self._singles:
            return
        rows, offsets, lens = (torch.tensor(c, device=device) for c in zip(*self._singles))
        longest = int(lens.max())
        context = torch.arange(longest, device=device)
        self._single_tokens = offsets
        self._single_context = self._context_rows(rows, longest)
        mask = context >= lens.unsqueeze(1)
        bias = torch.zeros(mask.shape, dtype=self._cache.blocks.dtype, device=device)
        self._single_bias = bias.masked_fill_(mask, -torch.inf)[:, None, None]

    def _context_rows(self, rows: torch.Tensor, length: int) -> torch.Tensor:
        """Layer 0's key rows of the first `length` tokens of some batch rows, [rows, length]."""
        position = torch.arange(length, device=rows.device)
        size = self._cache.block_size
        blocks = self._tables[rows][..., position // size]
        return self._cache.row_of(blocks, position % size)

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
        cache.rows.index_copy_(0, self._written + cache.row_shift(layer, False), key)
        cache.rows.index_copy_(0, self._written + cache.row_shift(layer, True), value)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        if self._singles:
            self._attend_singles(layer, query, scale, output)
        for row, offset, start, count in self._chunks:
            tokens = slice(offset, offset + count)
            context = self._context_rows(torch.tensor(row, device=query.device), start + count)
            keys, values = self._gathered(layer, context)
            output[tokens] = attend_causally(query[tokens], keys, values, start, scale)
        return output

    def _attend_singles(
        self, layer: int, query: torch.Tensor, scale: float, output: torch.Tensor
    ) -> None:
        keys, values = self._gathered(layer, self._single_context)
        heads, head_dim = query.shape[1:]
        # Query heads that share a key head become rows of one small product: nothing is repeated.
        grouped = query[self._single_tokens].view(len(keys), keys.shape[2], -1, head_dim)
        attended = scaled_dot_product_attention(
            grouped,
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=self._single_bias,
            scale=scale,
        )
        output[self._single_tokens] = attended.reshape(len(keys), heads, head_dim)

    def _gathered(self, layer: int, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [*context, kv_heads, head_dim] of a layer, copied out of their pages."""
        cache, flat = self._cache, context.flatten()
        keys = cache.rows.index_select(0, flat + cache.row_shift(layer, False))
        values = cache.rows.index_select(0, flat + cache.row_shift(layer, True))
        shape = (*context.shape, *keys.shape[1:])
        return keys.view(shape), values.view(shape)


def attend_causally(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, scale: float
) -> torch.Tensor:
    """One sequence: `query` [count, heads, d] at `start`.. over keys [start + count, kv_heads, d]."""
    count, length = len(query), len(keys)
    groups = query.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = (states.repeat_interleave(groups, 1) for states in (keys, values))
    mask = None
    if start:
        seen = torch.arange(length, device=query.device) <= torch.arange(
            start, length, device=query.device
        ).unsqueeze(1)
        mask = torch.zeros(count, length, dtype=query.dtype, device=query.device)
        mask.masked_fill_(~seen, -torch.inf)
    attended = scaled_dot_product_attention(
        *(states.transpose(0, 1).unsqueeze(0) for states in (query, keys, values)),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
    )
    return attended[0].transpose(0, 1)
