"""KV blocks as 8-bit integers, channel by channel (ALISE equation 8), in plain torch.

A channel is one element of one head of one layer's keys or values; its numbers are those of the
block's tokens. Each channel has its own scale, so that the large channels which keys are known for
cost the others nothing:

    quantum = round(x / scale - zero / scale)    0 .. 255        x ~ scale * quantum + zero
    zero = min, scale = (max - min) / 255                        |error| <= scale / 2

`zero` is what quantum 0 stands for, the equation's -scale * z with z not rounded: rounding z would
cut one end of the range off where a channel lies far from 0. (The paper's own formula for z has
lost its min.) Both are kept as float16, `zero` rounded down and `scale` up so that all of the range
stays inside.

Range of a part-filled block: beyond its last token lie numbers of the block's former owner. They
do not count: the caller says how many tokens were written (`PagedKV.fills`), and whatever lies
beyond comes back cut to the range, which attention weighs with 0.

A packed block is one row of bytes: quanta uint8 [layer, 2, block_size, kv_head, head_dim], scales
float16 [layer, 2, kv_head, head_dim], zeros likewise.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

NUM_STEPS = 255
WIDEN = 2.0**-10
"""Twice the error of rounding to float16, relative; below 2 ** -14 it is `TINY`, absolute."""
TINY = 2.0**-24
LARGEST = 65504.0


class Packed(NamedTuple):
    """The parts of n packed blocks, as views."""

    quanta: torch.Tensor  # uint8 [n, layer, 2, block_size, kv_head, head_dim]
    scales: torch.Tensor  # float16 [n, layer, 2, kv_head, head_dim]
    zeros: torch.Tensor  # float16, likewise


def packed_bytes(shape: Sequence[int]) -> int:
    """Bytes of one packed block of a pool [block, layer, 2, block_size, kv_head, head_dim]."""
    _, layers, pair, block_size, kv_heads, head_dim = shape
    return layers * pair * kv_heads * head_dim * (block_size + 2 * 2)


def parts(packed: torch.Tensor, shape: Sequence[int]) -> Packed:
    """The parts of `packed` uint8 [n, packed_bytes], whose rows may lie apart."""
    layers, pair, block_size, kv_heads, head_dim = shape[1:]
    channels = (len(packed), layers, pair, kv_heads, head_dim)
    num_quanta, num_channels = math.prod(shape[1:]), math.prod(channels[1:])
    halves = packed[:, num_quanta:].view(torch.float16)
    return Packed(
        packed[:, :num_quanta].view(len(packed), layers, pair, block_size, kv_heads, head_dim),
        halves[:, :num_channels].view(channels),
        halves[:, num_channels:].view(channels),
    )


def pack_blocks(
    blocks: torch.Tensor, index: torch.Tensor, fills: torch.Tensor, packed: torch.Tensor
) -> None:
    """Pack the pool's blocks at `index` int64 [n] into `packed` uint8 [n, packed_bytes].

    `fills` int64 [n]: tokens written of each block, at least 1.
    """
    quanta, scales, zeros = parts(packed, blocks.shape)
    values = blocks[index].float()
    low, high = _range(values, fills)
    zeros.copy_((low - low.abs() * WIDEN - TINY).clamp_(-LARGEST, LARGEST))
    zero = zeros.float()
    step = (high - zero) / NUM_STEPS
    scales.copy_((step * (1.0 + WIDEN) + TINY).clamp_(TINY, LARGEST))
    steps = scales.float().reciprocal_()
    values *= steps.unsqueeze(3)
    values += (0.5 - zero * steps).unsqueeze(3)
    quanta.copy_(values.clamp_(0, NUM_STEPS))  # which rounds down


def unpack_blocks(packed: torch.Tensor, blocks: torch.Tensor, index: torch.Tensor) -> None:
    """Write what `packed` [n, packed_bytes] holds to the pool's blocks at `index` int64 [n]."""
    quanta, scales, zeros = parts(packed, blocks.shape)
    values = quanta.float()
    values *= scales.float().unsqueeze(3)
    values += zeros.float().unsqueeze(3)
    blocks[index] = values.to(blocks.dtype)


def _range(values: torch.Tensor, fills: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest and highest number [n, layer, 2, kv_head, head_dim] of the written tokens."""
    block_size = values.shape[3]
    if bool((fills >= block_size).all()):
        return values.amin(3), values.amax(3)
    beyond = torch.arange(block_size, device=values.device) >= fills.unsqueeze(1)
    beyond = beyond.view(len(values), 1, 1, block_size, 1, 1)
    return (
        values.masked_fill(beyond, torch.inf).amin(3),
        values.masked_fill(beyond, -torch.inf).amax(3),
    )
