"""Decode attention to latent rows: a new token per row, whose heads all read the same row.

A row's first RANK numbers are key and value of every head; the turned ones behind them are key
alone. So a tile of rows is read once, for the scores and for the mean. Long contexts are split over
programs that join again, as in `decode`.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from functools import lru_cache

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.decode import counters, num_splits
from daemon.engine.cuda.triton.parts import leave_part
from daemon.engine.cuda.triton.tiles import LOG2_E, power_of_2, precision_of, product_of

_HEADS = 16
"""Most heads of a program: the fewest rows that matrix units take."""
_KEYS = 16
_JOINED_CELLS = 8192
_LOWEST = tl.constexpr(-1e30)


def paged_row_attention(
    query: torch.Tensor,
    turned: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Means of rows [B, heads, rank] of one new token a row; a row without context gives 0.

    `query` [B, heads, rank] absorbed queries, `turned` [B, heads, n] their turned numbers;
    `kv_cache` [block, layer, 1, block_size, 1, rank + n]. Not to be run on two streams at once.
    Raises ValueError where the numbers of a head or a row do not lie side by side.
    """
    if any(states.stride(-1) != 1 for states in (query, turned, kv_cache)):
        raise ValueError("the numbers of queries and rows must be contiguous")
    batch, heads, rank = query.shape
    cells = kv_cache[:, layer, 0]
    block_size, device = cells.shape[1], query.device
    out = torch.empty_like(query, memory_format=torch.contiguous_format) if out is None else out
    if not batch:
        return out
    group = _together(heads)
    tiles = heads // group
    splits, least = num_splits(batch * tiles, block_tables.shape[1] * block_size, device)
    partial = query.new_empty((batch, heads, splits, rank), dtype=torch.float32)
    masses = query.new_empty((batch, heads, splits), dtype=torch.float32)
    dim, members = power_of_2(rank), power_of_2(group)
    is_wide = query.dtype.itemsize > 2
    _attend[(tiles, batch, splits)](
        query, turned, cells, block_tables, context_lens, partial, masses, counters(device), out,
        *query.stride()[:2], *turned.stride()[:2], *out.stride()[:2], cells.stride(0),
        block_tables.stride(0), splits, least, scale * LOG2_E,
        GROUP=group, ROWS=max(_HEADS, members), MEMBERS=members,
        JOINED=max(1, _JOINED_CELLS // (members * dim)), BLOCK_SIZE=block_size,
        TOKEN=cells.stride(1), RANK=rank, DIM=dim, TURNED=turned.shape[2],
        TURNED_DIM=max(16, power_of_2(turned.shape[2])), KEYS=_KEYS,
        PRECISION=precision_of(query.dtype), PRODUCT=product_of(query.dtype, query.dtype),
        num_warps=4, num_stages=1 if is_wide else 3,
    )  # fmt: skip
    return out


@lru_cache
def _together(heads: int) -> int:
    """Heads of a program: as many as divide all of them."""
    return max(count for count in range(1, _HEADS + 1) if heads % count == 0)


@triton.jit(do_not_specialize=["table_stride", "splits", "least"])
def _attend(
    query_ptr, turned_ptr, cache_ptr, tables_ptr, lens_ptr, partial_ptr, masses_ptr, counters_ptr,
    out_ptr, query_stride_row, query_stride_head, turned_stride_row, turned_stride_head,
    out_stride_row, out_stride_head, stride_block, table_stride, splits, least, scale_log2,
    GROUP: tl.constexpr, ROWS: tl.constexpr, MEMBERS: tl.constexpr, JOINED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TOKEN: tl.constexpr, RANK: tl.constexpr, DIM: tl.constexpr,
    TURNED: tl.constexpr, TURNED_DIM: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """One part of one row's context, for GROUP heads."""
    tile, row, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(lens_ptr + row)
    span = tl.maximum(tl.cdiv(tl.cdiv(length, splits), KEYS) * KEYS, least)
    parts, first = tl.cdiv(length, span), split * span
    member, dims, more = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, TURNED_DIM)
    head, there = tile * GROUP + member, member < GROUP
    mask = there[:, None] & (dims < RANK)[None, :]
    out_cells = (row * out_stride_row + head * out_stride_head)[:, None] + dims[None, :]
    if first >= length:
        if split == 0:
            tl.store(out_ptr + out_cells, tl.zeros([ROWS, DIM], out_ptr.dtype.element_ty), mask)
        return
    cells = (row * query_stride_row + head * query_stride_head)[:, None] + dims[None, :]
    query = tl.load(query_ptr + cells, mask=mask, other=0.0).to(PRODUCT)
    cells = (row * turned_stride_row + head * turned_stride_head)[:, None] + more[None, :]
    behind = there[:, None] & (more < TURNED)[None, :]
    turned = tl.load(turned_ptr + cells, mask=behind, other=0.0).to(PRODUCT)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    peak, total = tl.full([ROWS], _LOWEST, tl.float32), tl.zeros([ROWS], tl.float32)
    stop = tl.minimum(first + span, length)
    tables_ptr += row * table_stride
    for begin in range(first, stop, KEYS):
        positions = begin + tl.arange(0, KEYS)
        # Past the end the last token is read again, and masked by its position.
        read = tl.minimum(positions, stop - 1)
        blocks = tl.load(tables_ptr + read // BLOCK_SIZE).to(tl.int64)
        rows = blocks * stride_block + (read % BLOCK_SIZE) * TOKEN
        places = cache_ptr + rows[:, None]
        latent = tl.load(places + dims[None, :], mask=(dims < RANK)[None, :], other=0.0)
        keys = tl.load(places + RANK + more[None, :], mask=(more < TURNED)[None, :], other=0.0)
        scores = tl.dot(query, tl.trans(latent.to(PRODUCT)), input_precision=PRECISION)
        scores = tl.dot(turned, tl.trans(keys.to(PRODUCT)), scores, input_precision=PRECISION)
        scores = tl.where((positions < stop)[None, :], scores * scale_log2, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        total = total * fade + tl.sum(weights, 1)
        weights = weights.to(latent.dtype).to(PRODUCT)
        acc = tl.dot(weights, latent.to(PRODUCT), acc * fade[:, None], input_precision=PRECISION)
        peak = new_peak
    mean = acc / total[:, None]
    if parts == 1:
        tl.store(out_ptr + out_cells, mean.to(out_ptr.dtype.element_ty), mask)
    else:
        leave_part(
            mean, peak + tl.log2(total), partial_ptr, masses_ptr, counters_ptr,
            out_ptr + row * out_stride_row, row * tl.num_programs(0) + tile, tile * GROUP, split,
            splits, parts, out_stride_head, GROUP, ROWS, MEMBERS, JOINED, RANK, DIM,
        )  # fmt: skip
