"""Decode attention: a new token per row; long contexts are split over programs that join again.

Which program computes which part of a row follows from the row's length, which lies on the device:
what is launched depends on shapes alone, so that CUDA graphs can hold it. A short row is computed
by its first program, which writes the result; the parts of a longer one leave theirs in `partial`,
and the program that ends last takes the mean.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from daemon.engine.cuda.triton.early import early
from daemon.engine.cuda.triton.fold import (
    add_sinks,
    attended,
    fold_tile,
    new_softmax,
    prepared_query,
)
from daemon.engine.cuda.triton.parts import leave_part
from daemon.engine.cuda.triton.quantise import PLAIN_KIND, kind_of
from daemon.engine.cuda.triton.tiles import (
    LOG2_E,
    Tiling,
    decode_tiling,
    layer_cells,
    new_output,
    power_of_2,
)
from daemon.engine.layers.attention import FULL, AttentionVariant

_WAVES = 2
"""Least programs per SM, if contexts are long enough."""
_LEAST_TOKENS = 64
"""Least tokens of a part where rows alone do not fill the device."""
_LEAST_TOKENS_FILLED = 4096
"""Least tokens of a part where rows fill it: only rows much longer than the others are split, so
that the others do not wait for them."""
_LONGEST_TOKENS = 8192
"""Most tokens of a part, about: a table of this width has one part, of twice the width two."""
_MAX_SPLITS = 128
_MAX_PAIRS = 1 << 16
"""Most (row, KV head) pairs whose contexts are split: each has a counter."""
_JOINED_CELLS = 8192
_INTERPRETED_PROCESSORS = 4


def paged_decode_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
    kv_scales: torch.Tensor | None = None,
    tiling: Tiling | None = None,
    variant: AttentionVariant = FULL,
) -> torch.Tensor:
    """Attention of one new token a row over its context; a row without context gives 0.

    `query` [B, heads, head_dim]; `context_lens` int32 [B] counts the new token too. `tiling`: for
    searches of a better one. Not to be run on two streams at once.
    """
    cells = layer_cells(kv_cache, layer)
    batch, heads, head_dim = query.shape
    block_size, kv_heads = cells.shape[1:3]
    group = heads // kv_heads
    out = new_output(query) if out is None else out
    if not batch:
        return out
    device = query.device
    if tiling is None:
        tiling = decode_tiling(head_dim, query.dtype, kv_cache.dtype)
    most_tokens = block_tables.shape[1] * block_size
    if variant.window:
        most_tokens = min(most_tokens, variant.window)
    splits, least = num_splits(batch * kv_heads, most_tokens, device)
    partial = query.new_empty((batch, heads, splits, head_dim), dtype=torch.float32)
    masses = query.new_empty((batch, heads, splits), dtype=torch.float32)
    members = power_of_2(group)
    rows = max(tiling.rows, members)
    scales = None if kv_scales is None else kv_scales[:, layer, 0]
    _decode[(kv_heads, batch, splits)](
        query, cells, scales, block_tables, context_lens, variant.sinks, partial, masses,
        counters(device), out, *query.stride()[:2], *out.stride()[:2], cells.stride(0),
        0 if scales is None else scales.stride(0), block_tables.stride(0), splits, least,
        variant.window, scale * LOG2_E, variant.cap * LOG2_E,
        GROUP=group, ROWS=rows, MEMBERS=members,
        JOINED=max(1, _JOINED_CELLS // (members * tiling.dim)),
        BLOCK_SIZE=block_size, TOKEN=cells.stride(1), HEAD=cells.stride(2),
        VALUES=kv_cache.stride(2) * kv_cache.itemsize // cells.itemsize,
        SCALE_HEAD=0 if scales is None else scales.stride(2),
        SCALE_VALUES=0 if kv_scales is None else kv_scales.stride(2),
        HEAD_DIM=head_dim, DIM=tiling.dim, KEYS=tiling.keys, KIND=kind_of(kv_cache.dtype),
        PRECISION=tiling.precision, PRODUCT=tiling.product, WINDOWED=variant.window > 0,
        CAPPED=variant.cap > 0, SINKS=variant.sinks is not None, EARLY=early(),
        num_warps=min(8, tiling.num_warps * rows // tiling.rows),
        num_stages=tiling.num_stages, launch_pdl=early(),
    )  # fmt: skip
    return out


def num_splits(pairs: int, max_tokens: int, device: torch.device) -> tuple[int, int]:
    """Programs for each of `pairs` (row, KV head); the tokens that each takes at least."""
    filling = _WAVES * _processors(device) // pairs
    if pairs > _MAX_PAIRS:
        return 1, max_tokens
    least = _LEAST_TOKENS if filling > 1 else _LEAST_TOKENS_FILLED
    wanted = max(filling, max_tokens // _LONGEST_TOKENS)
    return max(1, min(wanted, -(-max_tokens // least), _MAX_SPLITS)), least


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def counters(device: torch.device) -> torch.Tensor:
    """How many programs of each pair have ended; 0 before and after each call.

    Made by the first call, which must not be one that a CUDA graph captures: its memory outlives
    every graph.
    """
    return torch.zeros(_MAX_PAIRS, dtype=torch.int32, device=device)


@triton.jit(do_not_specialize=["table_stride", "splits", "least", "window"])
def _decode(
    query_ptr, cache_ptr, scales_ptr, tables_ptr, lens_ptr, sinks_ptr, partial_ptr, masses_ptr,
    counters_ptr, out_ptr, query_stride_row, query_stride_head, out_stride_row, out_stride_head,
    stride_block, scale_stride_block, table_stride, splits, least, window, scale_log2, cap_log2,
    GROUP: tl.constexpr, ROWS: tl.constexpr, MEMBERS: tl.constexpr, JOINED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TOKEN: tl.constexpr, HEAD: tl.constexpr, VALUES: tl.constexpr,
    SCALE_HEAD: tl.constexpr, SCALE_VALUES: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One part of one row's context, for the GROUP query heads that share a KV head."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    # Heads are next to each other: they read the same pages of memory at the same time.
    kv_head, row, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(lens_ptr + row)
    seen = tl.minimum(length, window) if WINDOWED else length
    span = tl.maximum(tl.cdiv(tl.cdiv(seen, splits), KEYS) * KEYS, least)
    parts = tl.cdiv(seen, span)
    first = length - seen + split * span
    member, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    head = kv_head * GROUP + member
    mask = (member < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    out_cells = (row * out_stride_row + head * out_stride_head)[:, None] + dims[None, :]
    if first >= length:
        if split == 0:
            tl.store(out_ptr + out_cells, tl.zeros([ROWS, DIM], out_ptr.dtype.element_ty), mask)
        return
    cells = (row * query_stride_row + head * query_stride_head)[:, None] + dims[None, :]
    query = tl.load(query_ptr + cells, mask=mask, other=0.0)
    query, query_more = prepared_query(query, scale_log2, KIND, PRODUCT)
    acc, more, peak, total = new_softmax(ROWS, DIM, KIND)
    stop = tl.minimum(first + span, length)
    limits = tl.zeros([ROWS], tl.int32) + stop
    cache_ptr += kv_head * HEAD
    if KIND != PLAIN_KIND:
        scales_ptr += kv_head * SCALE_HEAD
    tables_ptr += row * table_stride
    for begin in range(first, stop, KEYS):
        acc, more, peak, total = fold_tile(
            acc, more, peak, total, query, query_more, cache_ptr, scales_ptr, tables_ptr,
            begin + tl.arange(0, KEYS), stop, limits, window, stride_block, scale_stride_block,
            scale_log2, cap_log2, BLOCK_SIZE, TOKEN, VALUES, SCALE_VALUES, HEAD_DIM, DIM, KIND,
            PRECISION, PRODUCT, False, CAPPED, True,
        )  # fmt: skip
    if SINKS:  # they count once: with the first part
        there = member < tl.where(split == 0, GROUP, 0)
        acc, more, peak, total = add_sinks(acc, more, peak, total, sinks_ptr, head, there, KIND)
    mean = attended(acc, more, total, KIND)
    if parts == 1:
        tl.store(out_ptr + out_cells, mean.to(out_ptr.dtype.element_ty), mask)
    else:
        leave_part(
            mean, peak + tl.log2(total), partial_ptr, masses_ptr, counters_ptr,
            out_ptr + row * out_stride_row, row * tl.num_programs(0) + kv_head,
            kv_head * GROUP, split, splits, parts, out_stride_head,
            GROUP, ROWS, MEMBERS, JOINED, HEAD_DIM, DIM,
        )  # fmt: skip
