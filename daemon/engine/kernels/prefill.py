"""Prefill attention: chunks of any lengths in one flat batch, causal from each row's start."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.kernels.tiles import LOG2_E, Tiling, fold_tile, layer_views, new_output


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
) -> torch.Tensor:
    """Causal attention of `counts[b]` new tokens a row, the first at position `starts[b]`.

    `query` [T, heads, head_dim], row b's tokens from `row_offsets[b]` on (int32 [B] or more, rising
    by `counts` at least); `starts`, `counts` int32 [B]. Their keys are in the cache. Right for
    counts of 1 and 0 too; tokens of no row (gaps, padding at the end) are not written.
    """
    keys, values = layer_views(kv_cache, layer)
    tokens, heads, head_dim = query.shape
    block_size, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    out = new_output(query) if out is None else out
    if not tokens or not len(starts):
        return out
    tiling = Tiling.of(head_dim, query.dtype)
    rows = _tile_rows(tokens, group, len(starts), tiling)
    tile_tokens = rows // group
    # A bound on the tiles that needs no look at `counts`, which lie on the device.
    tiles = tokens // tile_tokens + len(starts)
    _prefill[(tiles, kv_heads)](
        query, keys, values, block_tables, starts, counts, row_offsets, out, len(starts),
        *query.stride()[:2], *out.stride()[:2], *keys.stride()[:3], block_tables.stride(0),
        scale * LOG2_E,
        GROUP=group, ROWS=rows, TOKENS=tile_tokens, BLOCK_SIZE=block_size, HEAD_DIM=head_dim,
        DIM=tiling.dim, KEYS=tiling.keys, PRECISION=tiling.precision,
        PRODUCT=tiling.product, num_warps=num_warps(rows, tiling), num_stages=2,
    )  # fmt: skip
    return out


def num_warps(rows: int, tiling: Tiling) -> int:
    """Warps of a program: its accumulator must fit their registers."""
    return 8 if rows * tiling.dim >= 128 * 128 else 4


def _tile_rows(tokens: int, group: int, batch: int, tiling: Tiling) -> int:
    """(token, head of the group) pairs of a tile: no more than a mean row fills."""
    filled: int = triton.next_power_of_2(-(-tokens // batch) * group)
    return max(16, min(tiling.rows, filled), triton.next_power_of_2(group))


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


@triton.jit(do_not_specialize=["batch"])
def _prefill(
    query_ptr, keys_ptr, values_ptr, tables_ptr, starts_ptr, counts_ptr, offsets_ptr, out_ptr,
    batch, query_stride_token, query_stride_head, out_stride_token, out_stride_head,
    stride_block, stride_token, stride_head, table_stride, scale_log2,
    GROUP: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens of one row, for the GROUP query heads that share a KV head."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row = _find_row(tile, offsets_ptr, batch, TOKENS)
    offset = tl.load(offsets_ptr + row)
    start, count = tl.load(starts_ptr + row), tl.load(counts_ptr + row)
    first = (tile - offset // TOKENS - row) * TOKENS
    if first >= count:
        return
    member, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    local = first + member // GROUP
    head = kv_head * GROUP + member % GROUP
    mask = ((member // GROUP < TOKENS) & (local < count))[:, None] & (dims < HEAD_DIM)[None, :]
    token = (offset + local).to(tl.int64)
    cells = token * query_stride_token + head * query_stride_head
    query = tl.load(query_ptr + cells[:, None] + dims[None, :], mask=mask, other=0.0)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    limits = start + local + 1
    stop = start + tl.minimum(first + TOKENS, count)
    seen_by_all = (start + first + 1) // KEYS * KEYS
    keys_ptr += kv_head * stride_head
    values_ptr += kv_head * stride_head
    tables_ptr += row.to(tl.int64) * table_stride
    for begin in range(0, seen_by_all, KEYS):
        acc, peak, total = fold_tile(
            acc, peak, total, query, keys_ptr, values_ptr, tables_ptr,
            begin + tl.arange(0, KEYS), stop, limits, dims, stride_block, stride_token,
            scale_log2, BLOCK_SIZE, HEAD_DIM, PRECISION, PRODUCT, False,
        )  # fmt: skip
    for begin in range(seen_by_all, stop, KEYS):
        acc, peak, total = fold_tile(
            acc, peak, total, query, keys_ptr, values_ptr, tables_ptr,
            begin + tl.arange(0, KEYS), stop, limits, dims, stride_block, stride_token,
            scale_log2, BLOCK_SIZE, HEAD_DIM, PRECISION, PRODUCT, True,
        )  # fmt: skip
    cells = token * out_stride_token + head * out_stride_head
    result = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + cells[:, None] + dims[None, :], result, mask=mask)
