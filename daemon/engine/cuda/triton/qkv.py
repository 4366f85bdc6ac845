"""From a merged projection to attention's inputs in one go: head norms, rotation, KV write."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from daemon.engine.cuda.triton.early import early
from daemon.engine.cuda.triton.quantise import kind_of, quantised
from daemon.engine.cuda.triton.rows import row_stride

if TYPE_CHECKING:
    from daemon.engine.layers.ops import Heads

_CELLS = 1024


def place(
    projected: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_scales: torch.Tensor | None,
    layer: int,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
    heads: "Heads",
) -> None:
    """Norm and turn the queries of `projected` in place; put its keys, so too, and values away.

    `projected` [T, heads + 2 * kv_heads, head_dim]: queries, keys, values; keys and values are left
    as they were. `cos`, `sin` [T, rotary_dim], both halves alike: dimension i turns with
    i + rotary_dim / 2, those from rotary_dim on stay. Token t's key and value go to (block, offset)
    int32 [T] of a layer of `kv_cache` [block, layer, 2, block_size, kv_head, head_dim], whose
    blocks are contiguous; block < 0: nowhere. `kv_scales` float32 [block, layer, 2, block_size,
    kv_head], of a quantised cache. All in float32, rounded once. Raises ValueError if something
    does not lie as said.
    """
    tokens, _, head_dim = projected.shape
    if not kv_cache[:1].is_contiguous() or not cos.is_contiguous() or not sin.is_contiguous():
        raise ValueError("a block of the cache, cosines and sines must be contiguous")
    if not tokens:
        return
    dim, rows = _tile(head_dim)
    query_tiles = -(-heads.num_heads // rows)
    tiles = query_tiles - (-heads.num_kv_heads // rows)
    query_norm, key_norm = heads.query_norm, heads.key_norm
    _place[(tokens * tiles,)](
        projected, cos, sin, kv_cache, kv_cache if kv_scales is None else kv_scales,
        slot_blocks, slot_offsets,
        cos if query_norm is None else query_norm.weight,
        cos if key_norm is None else key_norm.weight,
        0.0 if query_norm is None else query_norm.epsilon,
        0.0 if key_norm is None else key_norm.epsilon,
        layer, kv_cache.stride(0), *((0,) * 5 if kv_scales is None else kv_scales.stride()),
        TOKEN_STRIDE=row_stride(projected), HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads,
        HEAD_DIM=head_dim, ROTARY=cos.shape[-1], BLOCK_SIZE=kv_cache.shape[3],
        KIND=kind_of(kv_cache.dtype), QUERY_NORM=query_norm is not None,
        KEY_NORM=key_norm is not None, QUERY_TILES=query_tiles, TILES=tiles, ROWS=rows, DIM=dim,
        EARLY=early(), num_warps=4, launch_pdl=early(),
    )  # fmt: skip


@lru_cache
def _tile(head_dim: int) -> tuple[int, int]:
    """Numbers of a head, padded to a power of two, and heads of a tile."""
    dim: int = triton.next_power_of_2(head_dim)
    return dim, max(1, _CELLS // dim)


@triton.jit(do_not_specialize=["layer", "blocks_ptr", "offsets_ptr"])
def _place(
    projected_ptr, cos_ptr, sin_ptr, cache_ptr, scales_ptr, blocks_ptr, offsets_ptr,
    query_norm_ptr, key_norm_ptr, query_epsilon, key_epsilon, layer, stride_block,
    scale_stride_block, scale_stride_layer, scale_stride_pair, scale_stride_token,
    scale_stride_head,
    TOKEN_STRIDE: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, BLOCK_SIZE: tl.constexpr, KIND: tl.constexpr,
    QUERY_NORM: tl.constexpr, KEY_NORM: tl.constexpr, QUERY_TILES: tl.constexpr,
    TILES: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """ROWS heads of one token: queries, or keys with their values."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0) // TILES
    tile = tl.program_id(0) % TILES
    # 64 bits: a long prompt's projections, and most pools, are more than 2 ** 31 numbers.
    projected_ptr += token.to(tl.int64) * TOKEN_STRIDE
    cos_ptr += token.to(tl.int64) * ROTARY
    sin_ptr += token.to(tl.int64) * ROTARY
    if tile < QUERY_TILES:
        head = tile * ROWS + tl.arange(0, ROWS)
        query, cells, mask = _turned(
            projected_ptr, head, head < HEADS, cos_ptr, sin_ptr, query_norm_ptr, query_epsilon,
            HEAD_DIM, ROTARY, QUERY_NORM, DIM,
        )  # fmt: skip
        # No thread may write a number before the thread of the one it turns with has read it.
        tl.debug_barrier()
        tl.store(projected_ptr + cells, query.to(projected_ptr.dtype.element_ty), mask=mask)
    else:
        block = tl.load(blocks_ptr + token).to(tl.int64)
        head = (tile - QUERY_TILES) * ROWS + tl.arange(0, ROWS)
        there = head < tl.where(block >= 0, KV_HEADS, 0)
        key, cells, mask = _turned(
            projected_ptr + HEADS * HEAD_DIM, head, there, cos_ptr, sin_ptr, key_norm_ptr,
            key_epsilon, HEAD_DIM, ROTARY, KEY_NORM, DIM,
        )  # fmt: skip
        values_ptr = projected_ptr + (HEADS + KV_HEADS) * HEAD_DIM
        value = tl.load(values_ptr + cells, mask=mask, other=0.0).to(tl.float32)
        # A block is [layer, 2, block_size, kv_head, head_dim].
        offset = tl.load(offsets_ptr + token)
        targets = cells + (layer * (2 * BLOCK_SIZE) + offset) * (KV_HEADS * HEAD_DIM)
        targets = cache_ptr + block * stride_block + targets
        scale_targets = scales_ptr + block * scale_stride_block + layer * scale_stride_layer
        scale_targets += offset * scale_stride_token + head * scale_stride_head
        _store(key, targets, scale_targets, mask, there, KIND)
        targets += BLOCK_SIZE * KV_HEADS * HEAD_DIM
        _store(value, targets, scale_targets + scale_stride_pair, mask, there, KIND)


@triton.jit
def _turned(
    source_ptr, head, there, cos_ptr, sin_ptr, norm_ptr, epsilon,
    HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, NORM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Heads normed and turned, float32 [ROWS, DIM] (padding 0); where they lie, and which do."""
    dims = tl.arange(0, DIM)
    # The dimension that each one turns with; itself from ROTARY on.
    half: tl.constexpr = ROTARY // 2
    other = tl.where(dims < half, dims + half, tl.where(dims < ROTARY, dims - half, dims))
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]
    cells = head[:, None] * HEAD_DIM + dims[None, :]
    pairs = head[:, None] * HEAD_DIM + other[None, :]
    states = tl.load(source_ptr + cells, mask=mask, other=0.0).to(tl.float32)
    paired = tl.load(source_ptr + pairs, mask=mask, other=0.0).to(tl.float32)
    # Each row of the tile reads them anew: cheaper than to pass them on between threads.
    dims, other = tl.zeros_like(head)[:, None] + dims, tl.zeros_like(head)[:, None] + other
    cos = tl.load(cos_ptr + dims, mask=dims < ROTARY, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + dims, mask=dims < ROTARY, other=0.0).to(tl.float32)
    if NORM:
        weight = tl.load(norm_ptr + dims, mask=mask, other=0.0).to(tl.float32)
        paired_weight = tl.load(norm_ptr + other, mask=mask, other=0.0).to(tl.float32)
        factor = tl.rsqrt(tl.sum(states * states, 1) / HEAD_DIM + epsilon)[:, None]
        states = states * factor * weight
        paired = paired * factor * paired_weight
    turn = tl.where(dims < half, -sin, sin)
    return states * cos + paired * turn, cells, mask


@triton.jit
def _store(states, targets, scale_targets, mask, there, KIND: tl.constexpr):
    """Keys or values of one token to their cells of the cache."""
    quanta, scale = quantised(states, KIND)
    tl.store(targets, quanta.to(targets.dtype.element_ty), mask=mask)
    if KIND != 0:
        tl.store(scale_targets, scale, mask=there)
