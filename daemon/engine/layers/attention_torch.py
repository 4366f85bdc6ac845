"""Paged attention in plain torch: the reference for the kernels, and their replacement."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant

_TILE_QUERIES = 256
"""Queries behind a window that are computed together, at least."""
_SCORED_QUERIES = 128
"""Queries that are computed together where their scores lie in memory."""


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
        variant: AttentionVariant = FULL,
    ) -> torch.Tensor:
        """See `daemon.engine.layers.attention.PagedAttention`."""
        cache = self._cache
        if not variant.shared:
            cache.write(layer, self._written, key, value)
        output = query.new_empty(attended_shape(query, variant))
        if self._singles is not None:
            tokens = self._single_tokens
            output[tokens] = self._singles.attend(layer, query[tokens], scale, variant)
        self._chunks.attend(layer, query, (key, value), scale, output, variant)
        return output


class Singles:
    """The rows of a batch with one token each, of which there is at least one."""

    def __init__(self, batch: FlatBatch, cache: PagedKV) -> None:
        device, rows = cache.blocks.device, batch.single_rows
        self._cache = cache
        self._lens = torch.from_numpy(batch.starts[rows] + 1).to(device)
        self._tables = torch.from_numpy(batch.block_tables[rows]).to(device).long()
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by window

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        scale: float,
        variant: AttentionVariant = FULL,
    ) -> torch.Tensor:
        """Attention of these rows' `query` [S, heads, head_dim], as a tensor like it."""
        if variant.window not in self._seen:
            self._seen[variant.window] = self._see(variant.window)
        context, bias = self._seen[variant.window]
        latent = variant.latent
        if latent is not None:
            query = latent.absorbed(query)
        keys, values = gather(self._cache, layer, context)
        # Query heads that share a key head become rows of one small product: nothing is repeated.
        grouped = query.reshape(len(keys), keys.shape[2], -1, query.shape[2])
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        if variant.weighs_anew:
            sinks = variant.sinks
            if sinks is not None:
                sinks = sinks.view(1, grouped.shape[1], -1, 1)
            attended = _weighed(grouped, keys, values, bias, scale, variant.cap, sinks)
        else:
            attended = scaled_dot_product_attention(
                grouped, keys, values, attn_mask=bias, scale=scale
            )
        attended = attended.reshape(*query.shape[:2], -1)
        return attended if latent is None else latent.emitted(attended)

    def _see(self, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Each row's positions as `context_rows` gives them, and what hides those of no token."""
        lens = self._lens
        firsts = (lens - window).clamp(min=0) if window else torch.zeros_like(lens)
        seen = lens - firsts
        index = torch.arange(int(seen.max()), device=lens.device).expand(len(lens), -1)
        beyond = index >= seen.unsqueeze(1)
        # Masked positions read the row's own first token: another's NaN, times zero, is NaN.
        position = firsts.unsqueeze(1) + index.masked_fill(beyond, 0)
        context = context_rows(self._cache, self._tables, position)
        bias = torch.zeros(beyond.shape, dtype=self._cache.dtype, device=lens.device)
        return context, bias.masked_fill_(beyond, -torch.inf)[:, None, None]


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
        variant: AttentionVariant = FULL,
    ) -> None:
        """Fill these rows' tokens of `output`; `own`: the step's keys and values."""
        for offset, count, start, context in self._rows:
            tokens, first = slice(offset, offset + count), variant.first_key(start)
            if context is not None:
                keys, values = gather(self._cache, layer, context[first:])
            else:
                assert own is not None, "chunks that were made to read the cache need none"
                keys, values = own[0][tokens], own[1][tokens]
            attend = attend_causally if variant.latent is None else _attend_to_rows
            output[tokens] = attend(query[tokens], keys, values, start - first, scale, variant)


def attended_shape(query: torch.Tensor, variant: AttentionVariant) -> tuple[int, int, int]:
    """The shape of what attention gives for `query` [T, heads, d]."""
    count, heads, width = query.shape
    return count, heads, width if variant.latent is None else variant.latent.value_dim


def context_rows(cache: PagedKV, tables: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Layer 0's key rows of tokens: `tables` [..., blocks] and `position` [..., length] give rows
    of `position`'s shape."""
    blocks = tables.gather(-1, position // cache.block_size)
    return cache.row_of(blocks, position % cache.block_size)


def gather(cache: PagedKV, layer: int, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [*context, kv_heads, head_dim] of a layer, copied out of their pages."""
    keys, values = cache.read(layer, context.flatten())
    return keys.unflatten(0, context.shape), values.unflatten(0, context.shape)


def attend_causally(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
    scale: float,
    variant: AttentionVariant = FULL,
) -> torch.Tensor:
    """One sequence's `query` [count, heads, d] from `start` on, over all tokens up to its last.

    `keys` and `values` [start + count, kv_heads, d]; returns [count, heads, d]. Values may be of
    another width, which the result has then. Behind a window tiles of queries are computed one
    after the other, each with the keys that it sees; so they are where torch has no product that
    leaves scores out of memory: those of a long prompt would take hundreds of megabytes.
    """
    window, count = variant.window, len(query)
    narrow = 0 < window < start + count
    tile = _SCORED_QUERIES if variant.weighs_anew else max(window, _TILE_QUERIES)
    if not narrow and (count <= tile or not variant.weighs_anew):
        return _attend_tile(query, keys, values, start, scale, variant)
    attended = query.new_empty((*query.shape[:2], values.shape[2]))
    for begin in range(0, count, tile):
        end = min(begin + tile, count)
        first, last = variant.first_key(start + begin), start + end
        attended[begin:end] = _attend_tile(
            query[begin:end],
            keys[first:last],
            values[first:last],
            start + begin - first,
            scale,
            variant,
        )
    return attended


def _attend_to_rows(
    query: torch.Tensor,
    rows: torch.Tensor,
    _values: torch.Tensor,
    start: int,
    scale: float,
    variant: AttentionVariant,
) -> torch.Tensor:
    """As `attend_causally`, to keys and values made of `rows` [start + count, 1, width]."""
    projection = variant.latent
    assert projection is not None
    if not projection.expands(len(query)):
        absorbed, latent = projection.absorbed(query), rows[..., : projection.rank]
        return projection.emitted(attend_causally(absorbed, rows, latent, start, scale, variant))
    output = query.new_empty(attended_shape(query, variant))
    for heads in projection.heads_at_once(len(rows)):
        keys, values = projection.expanded(rows[:, 0], heads)
        own = variant.of_heads(heads)
        output[:, heads] = attend_causally(query[:, heads], keys, values, start, scale, own)
    return output


def _attend_tile(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
    scale: float,
    variant: AttentionVariant,
) -> torch.Tensor:
    """As `attend_causally`, all queries at once."""
    # Query heads that share a key head read it where it lies: nothing is repeated.
    grouped = query.unflatten(1, (keys.shape[1], -1)).permute(1, 2, 0, 3)
    shape = *grouped.shape[:2], len(keys)
    keys, values = (states.transpose(0, 1)[:, None].expand(*shape, -1) for states in (keys, values))
    narrow = 0 < variant.window < shape[2]
    if variant.weighs_anew:
        bias, sinks = causal_bias(query, start, variant.window), variant.sinks
        if sinks is not None:
            sinks = sinks.view(shape[0], shape[1], 1, 1)
        attended = _weighed(grouped, keys, values, bias, scale, variant.cap, sinks)
    else:
        mask = causal_bias(query, start, variant.window) if start or narrow else None
        attended = scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
        )
    return attended.permute(2, 0, 1, 3).flatten(1, 2)


def _weighed(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention [..., Q, d] whose scores are capped by `cap`, with `sinks` [..., Q or 1, 1]."""
    scores = (query @ keys.transpose(-1, -2)).float() * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    scores = scores + bias
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(*scores.shape[:-1], 1)), -1)
    weights = torch.softmax(scores, -1)[..., : keys.shape[-2]]
    return weights.to(values.dtype) @ values


def causal_bias(query: torch.Tensor, start: int, window: int = 0) -> torch.Tensor:
    """A mask that hides later tokens, and those in front of a window, from `query`
    [count, heads, d]: [count, start + count]."""
    count = len(query)
    shape, like = (count, start + count), {"dtype": query.dtype, "device": query.device}
    bias = torch.full(shape, -torch.inf, **like).triu_(start + 1)
    if window:
        bias += torch.full(shape, -torch.inf, **like).tril_(start - window)
    return bias
