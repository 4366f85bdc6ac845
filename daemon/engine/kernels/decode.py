"""Decode attention: one new token a row, its context split over programs, then reduced."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.kernels.tiles import LOG2_E, Tiling, fold_tile, layer_views, new_output

_WAVES = 2
_MIN_SPLIT_TOKENS = 128
_MAX_SPLITS = 64
_INTERPRETED_PROCESSORS = 4


def paged_decode_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one new token a row over its context; a row without context gives 0.

    `query` [B, heads, head_dim]; `context_lens` int32 [B] counts the new token too. Nothing waits
    for the device: the number of splits follows from shapes alone, so CUDA graphs can hold it.
    """
    keys, values = layer_views(kv_cache, layer)
    batch, heads, head_dim = query.shape
    block_size, kv_heads = keys.shape[1:3]
    out = new_output(query) if out is None else out
    if not batch:
        return out
    splits = num_splits(batch * kv_heads, block_tables.shape[1] * block_size, query.device)
    tiling = Tiling.of(head_dim, query.dtype)
    partial = query.new_empty((batch, heads, splits, head_dim), dtype=torch.float32)
    weights = query.new_empty((batch, heads, splits), dtype=torch.float32)
    _decode_split[(batch, kv_heads, splits)](
        query, keys, values, block_tables, context_lens, partial, weights,
        *query.stride()[:2], *keys.stride()[:3], block_tables.stride(0), splits, scale * LOG2_E,
        GROUP=heads // kv_heads, ROWS=max(16, triton.next_power_of_2(heads // kv_heads)),
        BLOCK_SIZE=block_size, HEAD_DIM=head_dim, DIM=tiling.dim, KEYS=tiling.keys,
        PRECISION=tiling.precision, PRODUCT=tiling.product, num_warps=4, num_stages=2,
    )  # fmt: skip
    _reduce_splits[(batch, heads)](
        partial, weights, out, *out.stride()[:2], splits,
        SPLITS=triton.next_power_of_2(splits), HEAD_DIM=head_dim, DIM=tiling.dim,
    )  # fmt: skip
    return out


def num_splits(rows: int, max_tokens: int, device: torch.device) -> int:
    """Programs for each of `rows` (row, KV head) pairs: enough to fill the device, none tiny."""
    processors = _INTERPRETED_PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = -(-_WAVES * processors // rows)
    return max(1, min(wanted, -(-max_tokens // _MIN_SPLIT_TOKENS), _MAX_SPLITS))


@triton.jit
def _decode_split(
    query_ptr, keys_ptr, values_ptr, tables_ptr, lens_ptr, partial_ptr, weights_ptr,
    query_stride_row, query_stride_head, stride_block, stride_token, stride_head, table_stride,
    splits, scale_log2,
    GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """One split of one row's context, for the GROUP query heads that share a KV head."""
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens_ptr + row)
    span = tl.cdiv(tl.cdiv(length, splits), KEYS) * KEYS
    first = split * span
    stop = tl.minimum(first + span, length)
    member, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    head = kv_head * GROUP + member
    cell = (row * tl.num_programs(1) * GROUP + head) * splits + split
    if first >= stop:
        tl.store(weights_ptr + cell, float("-inf"), mask=member < GROUP)
        return
    mask = (member < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    offsets = row * query_stride_row + head * query_stride_head
    query = tl.load(query_ptr + offsets[:, None] + dims[None, :], mask=mask, other=0.0)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    limits = tl.zeros([ROWS], tl.int32) + stop
    keys_ptr += kv_head * stride_head
    values_ptr += kv_head * stride_head
    tables_ptr += row * table_stride
    for begin in range(first, stop, KEYS):
        acc, peak, total = fold_tile(
            acc, peak, total, query, keys_ptr, values_ptr, tables_ptr,
            begin + tl.arange(0, KEYS), stop, limits, dims, stride_block, stride_token,
            scale_log2, BLOCK_SIZE, HEAD_DIM, PRECISION, PRODUCT, True,
        )  # fmt: skip
    tl.store(weights_ptr + cell, peak + tl.log2(total), mask=member < GROUP)
    tl.store(
        partial_ptr + cell[:, None] * HEAD_DIM + dims[None, :], acc / total[:, None], mask=mask
    )


@triton.jit
def _reduce_splits(
    partial_ptr, weights_ptr, out_ptr, out_stride_row, out_stride_head, splits,
    SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """The mean of the splits' outputs, weighted by each one's softmax mass (a log2)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
    cell = (row * tl.num_programs(1) + head) * splits + split
    mass = tl.load(weights_ptr + cell, mask=split < splits, other=float("-inf"))
    peak = tl.max(mass, 0)
    used = mass > float("-inf")
    weights = tl.where(used, tl.exp2(mass - tl.where(peak > float("-inf"), peak, 0.0)), 0.0)
    mask = used[:, None] & (dims < HEAD_DIM)[None, :]
    partial = tl.load(partial_ptr + cell[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    total = tl.sum(weights, 0)
    mean = tl.sum(partial * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    target = out_ptr + row * out_stride_row + head * out_stride_head + dims
    tl.store(target, mean.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
