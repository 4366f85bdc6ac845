"""Writes into the paged KV cache: new keys and values, and copies of whole blocks."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.kernels.tiles import layer_views

_WRITE_CELLS = 1024
_COPY_CELLS = 4096


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
) -> None:
    """Store `key`, `value` [T, kv_head, head_dim] at (block, offset) int32 [T]; block < 0: drop.

    Raises ValueError if head_dim is not contiguous in `key`, `value` or the cache.
    """
    keys, values = layer_views(kv_cache, layer)
    tokens, kv_heads, head_dim = key.shape
    if key.stride(-1) != 1 or value.stride(-1) != 1:
        raise ValueError("head_dim of key and value must be contiguous")
    if not tokens:
        return
    _write_kv[(tokens, triton.cdiv(kv_heads * head_dim, _WRITE_CELLS))](
        key, value, keys, values, slot_blocks, slot_offsets,
        *key.stride()[:2], *value.stride()[:2], *keys.stride()[:3],
        KV_HEADS=kv_heads, HEAD_DIM=head_dim,
        CELLS=min(_WRITE_CELLS, triton.next_power_of_2(kv_heads * head_dim)),
    )  # fmt: skip


def copy_blocks(kv_cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy whole blocks, all layers; `sources`, `targets` int32 [C], no block in both.

    Raises ValueError if a block is not one contiguous piece.
    """
    if not kv_cache[:1].is_contiguous():
        raise ValueError("a block of the cache must be contiguous")
    if not len(sources):
        return
    cells = kv_cache[0].numel()
    grid = (len(sources), triton.cdiv(cells, _COPY_CELLS))
    _copy_blocks[grid](kv_cache, sources, targets, kv_cache.stride(0), cells, CELLS=_COPY_CELLS)


@triton.jit
def _write_kv(
    key_ptr, value_ptr, keys_ptr, values_ptr, blocks_ptr, offsets_ptr,
    key_stride_token, key_stride_head, value_stride_token, value_stride_head,
    stride_block, stride_token, stride_head,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """A piece of one token's keys and values."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks_ptr + token).to(tl.int64)
    if block < 0:
        return
    cell = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    head, dim = cell // HEAD_DIM, cell % HEAD_DIM
    mask = head < KV_HEADS
    target = block * stride_block + tl.load(offsets_ptr + token) * stride_token
    target += head * stride_head + dim
    key = tl.load(key_ptr + token * key_stride_token + head * key_stride_head + dim, mask=mask)
    tl.store(keys_ptr + target, key, mask=mask)
    value = tl.load(
        value_ptr + token * value_stride_token + head * value_stride_head + dim, mask=mask
    )
    tl.store(values_ptr + target, value, mask=mask)


@triton.jit
def _copy_blocks(cache_ptr, sources_ptr, targets_ptr, stride_block, cells, CELLS: tl.constexpr):
    """A piece of one block."""
    source = tl.load(sources_ptr + tl.program_id(0)).to(tl.int64) * stride_block
    target = tl.load(targets_ptr + tl.program_id(0)).to(tl.int64) * stride_block
    cell = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    piece = tl.load(cache_ptr + source + cell, mask=cell < cells)
    tl.store(cache_ptr + target + cell, piece, mask=cell < cells)
