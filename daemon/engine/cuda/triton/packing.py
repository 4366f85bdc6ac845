"""KV blocks to 8-bit integers and back, as `daemon.engine.kv.host_int8` defines it."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.kv.host_int8 import LARGEST, NUM_STEPS, TINY, WIDEN, packed_bytes

_TILE_CELLS = 8192


def pack_blocks(
    blocks: torch.Tensor, index: torch.Tensor, fills: torch.Tensor, packed: torch.Tensor
) -> None:
    """Pack the pool's blocks at `index` int64 [n] into `packed` uint8 [n, packed_bytes].

    `fills` int64 [n]: tokens written of each block, at least 1. Raises ValueError if a block is not
    one contiguous piece, or `packed` is not.
    """
    planes, block_size, channels, tile = _sizes(blocks, packed)
    if len(index):
        _pack[(len(index), planes, triton.cdiv(channels, tile))](
            blocks, index, fills, packed, packed.view(torch.float16),
            blocks.stride(0), packed.stride(0), planes, channels,
            BLOCK_SIZE=block_size, TOKENS=triton.next_power_of_2(block_size), CELLS=tile,
            STEPS=float(NUM_STEPS), WIDEN=WIDEN, TINY=TINY, LARGEST=LARGEST,
        )  # fmt: skip


def unpack_blocks(packed: torch.Tensor, blocks: torch.Tensor, index: torch.Tensor) -> None:
    """Write what `packed` [n, packed_bytes] holds to the pool's blocks at `index` int64 [n].

    Raises ValueError as `pack_blocks`.
    """
    planes, block_size, channels, tile = _sizes(blocks, packed)
    if len(index):
        _unpack[(len(index), planes, triton.cdiv(channels, tile))](
            packed, packed.view(torch.float16), blocks, index,
            packed.stride(0), blocks.stride(0), planes, channels,
            BLOCK_SIZE=block_size, TOKENS=triton.next_power_of_2(block_size), CELLS=tile,
        )  # fmt: skip


def _sizes(blocks: torch.Tensor, packed: torch.Tensor) -> tuple[int, int, int, int]:
    """Planes (keys or values of a layer), tokens and channels of a block; channels of a tile."""
    if not blocks[:1].is_contiguous() or not packed.is_contiguous():
        raise ValueError("a block of the cache, and what it is packed to, must be contiguous")
    if packed.shape[1] != packed_bytes(blocks.shape):
        raise ValueError(f"a packed block has {packed_bytes(blocks.shape)} bytes")
    layers, pair, block_size, kv_heads, head_dim = blocks.shape[1:]
    channels = kv_heads * head_dim
    widest = _TILE_CELLS // triton.next_power_of_2(block_size)
    return layers * pair, block_size, channels, min(widest, triton.next_power_of_2(channels))


@triton.jit
def _pack(
    cache_ptr, index_ptr, fills_ptr, packed_ptr, halves_ptr,
    stride_block, stride_packed, planes, channels,
    BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr, CELLS: tl.constexpr,
    STEPS: tl.constexpr, WIDEN: tl.constexpr, TINY: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Some channels of one layer's keys or values of one block: all of its tokens."""
    row, plane = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.program_id(2) * CELLS + tl.arange(0, CELLS)
    token = tl.arange(0, TOKENS)
    there = channel < channels
    mask = (token < BLOCK_SIZE)[:, None] & there[None, :]
    cell = (plane * BLOCK_SIZE + token)[:, None] * channels + channel[None, :]
    block = tl.load(index_ptr + row).to(tl.int64) * stride_block
    values = tl.load(cache_ptr + block + cell, mask=mask, other=0.0).to(tl.float32)
    written = (token < tl.load(fills_ptr + row))[:, None] & mask
    low = tl.min(tl.where(written, values, float("inf")), 0)
    high = tl.max(tl.where(written, values, float("-inf")), 0)
    low, high = tl.where(there, low, 0.0), tl.where(there, high, 0.0)
    zero = low - tl.abs(low) * WIDEN - TINY
    zero = tl.minimum(tl.maximum(zero, -LARGEST), LARGEST).to(tl.float16)
    step = (high - zero.to(tl.float32)) / STEPS
    scale = tl.minimum(tl.maximum(step * (1.0 + WIDEN) + TINY, TINY), LARGEST).to(tl.float16)
    ratio = (values - zero.to(tl.float32)[None, :]) / scale.to(tl.float32)[None, :]
    quanta = tl.minimum(tl.maximum(tl.floor(ratio + 0.5), 0.0), STEPS)
    target = row * stride_packed
    tl.store(packed_ptr + target + cell, quanta.to(tl.int32).to(tl.uint8), mask=mask)
    # float16 numbers lie behind the quanta: scales first, then zeros.
    half = (target + planes * BLOCK_SIZE * channels) // 2 + plane * channels + channel
    tl.store(halves_ptr + half, scale, mask=there)
    tl.store(halves_ptr + half + planes * channels, zero, mask=there)


@triton.jit
def _unpack(
    packed_ptr, halves_ptr, cache_ptr, index_ptr,
    stride_packed, stride_block, planes, channels,
    BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Some channels of one layer's keys or values of one block: all of its tokens."""
    row, plane = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.program_id(2) * CELLS + tl.arange(0, CELLS)
    token = tl.arange(0, TOKENS)
    there = channel < channels
    mask = (token < BLOCK_SIZE)[:, None] & there[None, :]
    cell = (plane * BLOCK_SIZE + token)[:, None] * channels + channel[None, :]
    source = row * stride_packed
    half = (source + planes * BLOCK_SIZE * channels) // 2 + plane * channels + channel
    scale = tl.load(halves_ptr + half, mask=there, other=0.0).to(tl.float32)
    zero = tl.load(halves_ptr + half + planes * channels, mask=there, other=0.0).to(tl.float32)
    quanta = tl.load(packed_ptr + source + cell, mask=mask, other=0).to(tl.float32)
    values = quanta * scale[None, :] + zero[None, :]
    block = tl.load(index_ptr + row).to(tl.int64) * stride_block
    tl.store(cache_ptr + block + cell, values.to(cache_ptr.dtype.element_ty), mask=mask)
