"""Paged attention in plain torch: the reference for the kernels, and their replacement."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.kv.pool import PagedKV


class TorchAttention:
    """One step over a batch whose single-token rows attend together, longer ones one by one."""

    def __init__(self, batch: FlatBatch, cache: PagedKV) -> None:
        device = cache.blocks.device
        self._cache = cache
        blocks = torch.from_numpy(batch.blocks).to(device)
        self._written = cache.row_of(blocks, torch.from_numpy(batch.offsets).to(device))
        self._chunks = Chunks(batch, cache)
        self._singles: Singles | None = None
        if len(batch.single_rows):
            self._singles = Singles(batch, cache)
            tokens = batch.row_offsets[batch.single_rows]
            self._single_tokens = torch.from_numpy(tokens).to(device).long()

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """See `daemon.engine.layers.attention.PagedAttention`."""
        cache = self._cache
        cache.write(layer, self._written, key, value)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if self._singles is not None:
            tokens = self._single_tokens
            output[tokens] = self._singles.attend(layer, query[tokens], scale)
        self._chunks.attend(layer, query, (key, value), scale, output)
        return output


class Singles:
    """The rows of a batch with one token each, of which there is at least one."""

    def __init__(self, batch: FlatBatch, cache: PagedKV) -> None:
        device, rows = cache.blocks.device, batch.single_rows
        self._cache = cache
        lens = torch.from_numpy(batch.starts[rows] + 1).to(device)
        tables = torch.from_numpy(batch.block_tables[rows]).to(device).long()
        position = torch.arange(int(lens.max()), device=device).expand(len(rows), -1)
        beyond = position >= lens.unsqueeze(1)
        # Masked positions read the row's own first token: another's NaN, times zero, is NaN.
        self._context = context_rows(cache, tables, position.masked_fill(beyond, 0))
        bias = torch.zeros(beyond.shape, dtype=cache.dtype, device=device)
        self._bias = bias.masked_fill_(beyond, -torch.inf)[:, None, None]

    def attend(self, layer: int, query: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of these rows' `query` [S, heads, head_dim], as a tensor like it."""
        keys, values = gather(self._cache, layer, self._context)
        # Query heads that share a key head become rows of one small product: nothing is repeated.
        grouped = query.reshape(len(keys), keys.shape[2], -1, query.shape[2])
        attended = scaled_dot_product_attention(
            grouped,
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=self._bias,
            scale=scale,
        )
        return attended.reshape(query.shape)


class Chunks:
    """The rows of a batch with several tokens: prompts, whole or in part.

    `cached`: all keys and values are read from the cache, since the step's own are not passed in.
    """

    def __init__(self, batch: FlatBatch, cache: PagedKV, cached: bool = False) -> None:
        self._cache = cache
        self._rows: list[tuple[int, int, int, torch.Tensor | None]] = []
        for row in batch.chunk_rows.tolist():
            offset, start = int(batch.row_offsets[row]), int(batch.starts[row])
            count = int(batch.counts[row])
            context = None
            # What an 8-bit cache has rounded is what later steps will read: so does this one.
            if cached or start or cache.scales is not None:
                table = torch.from_numpy(batch.block_tables[row]).to(cache.blocks.device).long()
                position = torch.arange(start + count, device=table.device)
                context = context_rows(cache, table, position)
            self._rows.append((offset, count, start, context))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        own: tuple[torch.Tensor, torch.Tensor] | None,
        scale: float,
        output: torch.Tensor,
    ) -> None:
        """Fill these rows' tokens of `output`; `own`: the step's keys and values."""
        for offset, count, start, context in self._rows:
            tokens = slice(offset, offset + count)
            if context is not None:
                keys, values = gather(self._cache, layer, context)
            else:
                assert own is not None, "chunks that were made to read the cache need none"
                keys, values = own[0][tokens], own[1][tokens]
            output[tokens] = attend_causally(query[tokens], keys, values, start, scale)


def context_rows(cache: PagedKV, tables: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Layer 0's key rows of tokens: `tables` [..., blocks] and `position` [..., length] give rows
    of `position`'s shape."""
    blocks = tables.gather(-1, position // cache.block_size)
    return cache.row_of(blocks, position % cache.block_size)


def gather(cache: PagedKV, layer: int, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [*context, kv_heads, head_dim] of a layer, copied out of their pages."""
    keys, values = cache.read(layer, context.flatten())
    shape = (*context.shape, *keys.shape[1:])
    return keys.view(shape), values.view(shape)


def attend_causally(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, scale: float
) -> torch.Tensor:
    """One sequence's `query` [count, heads, d] from `start` on, over all tokens up to its last.

    `keys` and `values` [start + count, kv_heads, d]; returns [count, heads, d].
    """
    count, heads, head_dim = query.shape
    # Query heads that share a key head read it where it lies: nothing is repeated.
    grouped = query.unflatten(1, (keys.shape[1], -1)).permute(1, 2, 0, 3)
    shape = grouped.shape[0], grouped.shape[1], len(keys), head_dim
    keys, values = (states.transpose(0, 1)[:, None].expand(shape) for states in (keys, values))
    mask = causal_bias(query, start) if start else None
    attended = scaled_dot_product_attention(
        grouped, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return attended.permute(2, 0, 1, 3).reshape(count, heads, head_dim)


def causal_bias(query: torch.Tensor, start: int) -> torch.Tensor:
    """A mask that hides later tokens from `query` [count, heads, d]: [count, start + count]."""
    count = len(query)
    bias = torch.full((count, start + count), -torch.inf, dtype=query.dtype, device=query.device)
    return bias.triu_(start + 1)
