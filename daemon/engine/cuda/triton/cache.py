"""Writes of new keys and values into the paged KV cache."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.quantise import PLAIN_KIND, kind_of, quantised
from daemon.engine.cuda.triton.tiles import power_of_2

_WRITE_CELLS = 1024


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """Store `key`, `value` [T, kv_head, head_dim] at (block, offset) int32 [T]; block < 0: drop.

    Raises ValueError if head_dim is not contiguous in `key`, `value` or the cache.
    """
    tokens, kv_heads, head_dim = key.shape
    if key.stride(-1) != 1 or value.stride(-1) != 1 or kv_cache.stride(-1) != 1:
        raise ValueError("head_dim of key, value and cache must be contiguous")
    if not tokens:
        return
    dim = power_of_2(head_dim)
    rows = max(1, min(_WRITE_CELLS // dim, power_of_2(kv_heads)))
    cells = kv_cache[:, layer]
    scales = None if kv_scales is None else kv_scales[:, layer]
    _write_kv[(tokens, -(-kv_heads // rows))](
        key, value, cells, scales, slot_blocks, slot_offsets,
        *key.stride()[:2], *value.stride()[:2], cells.stride(0),
        0 if scales is None else scales.stride(0),
        VALUES=cells.stride(1), TOKEN=cells.stride(2), HEAD=cells.stride(3),
        SCALE_VALUES=0 if scales is None else scales.stride(1),
        SCALE_TOKEN=0 if scales is None else scales.stride(2),
        SCALE_HEAD=0 if scales is None else scales.stride(3),
        KV_HEADS=kv_heads, HEAD_DIM=head_dim, ROWS=rows, DIM=dim, KIND=kind_of(kv_cache.dtype),
    )  # fmt: skip


@triton.jit
def _write_kv(
    key_ptr, value_ptr, cache_ptr, scales_ptr, blocks_ptr, offsets_ptr,
    key_stride_token, key_stride_head, value_stride_token, value_stride_head,
    stride_block, scale_stride_block,
    VALUES: tl.constexpr, TOKEN: tl.constexpr, HEAD: tl.constexpr, SCALE_VALUES: tl.constexpr,
    SCALE_TOKEN: tl.constexpr, SCALE_HEAD: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """ROWS heads of one token's key and value."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks_ptr + token).to(tl.int64)
    if block < 0:
        return
    offset = tl.load(offsets_ptr + token)
    head, dims = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    there = head < KV_HEADS
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]
    cache_ptr += block * stride_block + offset * TOKEN
    cells = head[:, None] * HEAD + dims[None, :]
    if KIND != PLAIN_KIND:
        scales_ptr += block * scale_stride_block + offset * SCALE_TOKEN
    source = key_ptr + token * key_stride_token + (head * key_stride_head)[:, None] + dims[None, :]
    key = tl.load(source, mask=mask, other=0.0)
    source = value_ptr + token * value_stride_token + (head * value_stride_head)[:, None]
    value = tl.load(source + dims[None, :], mask=mask, other=0.0)
    if KIND == PLAIN_KIND:
        tl.store(cache_ptr + cells, key, mask=mask)
        tl.store(cache_ptr + VALUES + cells, value, mask=mask)
    else:
        stored, scale = quantised(key.to(tl.float32), KIND)
        tl.store(cache_ptr + cells, stored, mask=mask)
        tl.store(scales_ptr + head * SCALE_HEAD, scale, mask=there)
        stored, scale = quantised(value.to(tl.float32), KIND)
        tl.store(cache_ptr + VALUES + cells, stored, mask=mask)
        tl.store(scales_ptr + SCALE_VALUES + head * SCALE_HEAD, scale, mask=there)
