"""Prefill attention: chunks of any lengths in one flat batch, causal from each row's start."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.fold import (
    add_sinks,
    attended,
    fold_tile,
    new_softmax,
    prepared_query,
)
from daemon.engine.cuda.triton.quantise import PLAIN_KIND, kind_of
from daemon.engine.cuda.triton.tiles import (
    LOG2_E,
    Tiling,
    capability_of,
    layer_cells,
    new_output,
    power_of_2,
    prefill_tiling,
)
from daemon.engine.layers.attention import FULL, AttentionVariant

_FEW_ROWS = 32


def paged_prefill_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    row_offsets: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
    kv_scales: torch.Tensor | None = None,
    tiling: Tiling | None = None,
    variant: AttentionVariant = FULL,
) -> torch.Tensor:
    """Causal attention of `counts[b]` new tokens a row, the first at position `starts[b]`.

    `query` [T, heads, head_dim], row b's tokens from `row_offsets[b]` on (int32 [B] or more, rising
    by `counts` at least); `starts`, `counts` int32 [B]. Their keys are in the cache. Right for
    counts of 1 and 0 too; tokens of no row (gaps, padding at the end) are not written. `tiling`:
    for searches of a better one.
    """
    cells = layer_cells(kv_cache, layer)
    tokens, heads, head_dim = query.shape
    block_size, kv_heads = cells.shape[1:3]
    group = heads // kv_heads
    out = new_output(query) if out is None else out
    if not tokens or not len(starts):
        return out
    if tiling is None:
        capability = capability_of(query.device)
        tiling = prefill_tiling(head_dim, query.dtype, kv_cache.dtype, capability)
    rows = tile_rows(tokens, group, len(starts), tiling)
    tile_tokens = rows // group
    # A bound on the tiles that needs no look at `counts`, which lie on the device.
    tiles = tokens // tile_tokens + len(starts)
    scales = None if kv_scales is None else kv_scales[:, layer, 0]
    _prefill[(tiles * kv_heads,)](
        query, cells, scales, block_tables, starts, counts, row_offsets, variant.sinks, out,
        len(starts), *query.stride()[:2], *out.stride()[:2], cells.stride(0),
        0 if scales is None else scales.stride(0), block_tables.stride(0), variant.window,
        scale * LOG2_E, variant.cap * LOG2_E,
        KV_HEADS=kv_heads, GROUP=group, ROWS=rows, TOKENS=tile_tokens, BLOCK_SIZE=block_size,
        TOKEN=cells.stride(1), HEAD=cells.stride(2),
        VALUES=kv_cache.stride(2) * kv_cache.itemsize // cells.itemsize,
        SCALE_HEAD=0 if scales is None else scales.stride(2),
        SCALE_VALUES=0 if kv_scales is None else kv_scales.stride(2),
        HEAD_DIM=head_dim, DIM=tiling.dim, KEYS=tiling.keys, KIND=kind_of(kv_cache.dtype),
        PRECISION=tiling.precision, PRODUCT=tiling.product, WINDOWED=variant.window > 0,
        CAPPED=variant.cap > 0, SINKS=variant.sinks is not None,
        num_warps=tiling.num_warps if rows >= tiling.rows else 4, num_stages=tiling.num_stages,
    )  # fmt: skip
    return out


def tile_rows(tokens: int, group: int, batch: int, tiling: Tiling) -> int:
    """(token, head of the group) pairs of a tile: many, or few where a mean row has few tokens.

    No other numbers: each is a kernel of its own, and none should be compiled during serving.
    """
    few = max(_FEW_ROWS, power_of_2(group))
    return few if -(-tokens // batch) * group <= few else max(tiling.rows, few)


@triton.jit
def _find_row(tile, offsets_ptr, batch, TOKENS: tl.constexpr):
    """The row that a tile belongs to, if row b's tiles begin at offset // TOKENS + b."""
    low, high = tile * 0, batch
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(offsets_ptr + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["batch", "table_stride", "window"])
def _prefill(
    query_ptr, cache_ptr, scales_ptr, tables_ptr, starts_ptr, counts_ptr, offsets_ptr, sinks_ptr,
    out_ptr, batch, query_stride_token, query_stride_head, out_stride_token, out_stride_head,
    stride_block, scale_stride_block, table_stride, window, scale_log2, cap_log2,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TOKEN: tl.constexpr, HEAD: tl.constexpr, VALUES: tl.constexpr,
    SCALE_HEAD: tl.constexpr, SCALE_VALUES: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens of one row, for the GROUP query heads that share a KV head."""
    # The last tiles of a row see most keys: they begin first, so that none is left alone at last.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head, tile = program % KV_HEADS, program // KV_HEADS
    row = _find_row(tile, offsets_ptr, batch, TOKENS)
    offset = tl.load(offsets_ptr + row)
    start, count = tl.load(starts_ptr + row), tl.load(counts_ptr + row)
    first = (tile - offset // TOKENS - row) * TOKENS
    # Tiles in front of the first row, and in gaps behind others.
    if (first < 0) | (first >= count):
        return
    member, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    local = first + member // GROUP
    head = kv_head * GROUP + member % GROUP
    mask = ((member // GROUP < TOKENS) & (local < count))[:, None] & (dims < HEAD_DIM)[None, :]
    token = (offset + local).to(tl.int64)
    cells = token * query_stride_token + head * query_stride_head
    query = tl.load(query_ptr + cells[:, None] + dims[None, :], mask=mask, other=0.0)
    query, query_more = prepared_query(query, scale_log2, KIND, PRODUCT)
    acc, more, peak, total = new_softmax(ROWS, DIM, KIND)
    limits = start + local + 1
    stop = start + tl.minimum(first + TOKENS, count)
    seen_by_all = (start + first + 1) // KEYS * KEYS
    cache_ptr += kv_head * HEAD
    if KIND != PLAIN_KIND:
        scales_ptr += kv_head * SCALE_HEAD
    tables_ptr += row.to(tl.int64) * table_stride
    if WINDOWED:  # keys in front are not read: they may be another's by now
        seen_by_all = tl.maximum(start + first + 1 - window, 0)
    for begin in range(seen_by_all if WINDOWED else 0, seen_by_all, KEYS):
        acc, more, peak, total = fold_tile(
            acc, more, peak, total, query, query_more, cache_ptr, scales_ptr, tables_ptr,
            begin + tl.arange(0, KEYS), stop, limits, window, stride_block, scale_stride_block,
            scale_log2, cap_log2, BLOCK_SIZE, TOKEN, VALUES, SCALE_VALUES, HEAD_DIM, DIM, KIND,
            PRECISION, PRODUCT, False, CAPPED, False,
        )  # fmt: skip
    for begin in range(seen_by_all, stop, KEYS):
        acc, more, peak, total = fold_tile(
            acc, more, peak, total, query, query_more, cache_ptr, scales_ptr, tables_ptr,
            begin + tl.arange(0, KEYS), stop, limits, window, stride_block, scale_stride_block,
            scale_log2, cap_log2, BLOCK_SIZE, TOKEN, VALUES, SCALE_VALUES, HEAD_DIM, DIM, KIND,
            PRECISION, PRODUCT, WINDOWED, CAPPED, True,
        )  # fmt: skip
    if SINKS:
        there = member // GROUP < TOKENS
        acc, more, peak, total = add_sinks(acc, more, peak, total, sinks_ptr, head, there, KIND)
    cells = token * out_stride_token + head * out_stride_head
    result = attended(acc, more, total, KIND).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + cells[:, None] + dims[None, :], result, mask=mask)
