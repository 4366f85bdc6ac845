"""From blocks to numbers, in plain torch on any device: the meaning of every format.

Each is computed in float32, in the order of operations of the format's own reference, so that the
numbers are the same bit for bit.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from daemon.engine.quantised.unpack_grids import GRIDS
from daemon.models.formats import FP4_GROUP, NIBBLES, PLAIN, WeightFormat

Parts = tuple[torch.Tensor, ...]


def unpack(form: WeightFormat, data: torch.Tensor) -> torch.Tensor:
    """float32 [N, K] of `data` uint8 [N, bytes of K numbers]."""
    if form.block_len == 1:
        return data.contiguous().view(getattr(torch, PLAIN[form.name])).float()
    blocks = data.reshape(-1, form.block_bytes)
    kind = form.name.partition("/")[0]
    return _UNPACK[kind](blocks).reshape(len(data), -1)


def _cut(blocks: torch.Tensor, *sizes: int) -> Parts:
    """Cut columns of `sizes` bytes each, the rest last; each dense, so that it can be viewed."""
    rest = blocks.shape[1] - sum(sizes)
    return tuple(part.contiguous() for part in blocks.split([*sizes, rest], 1))


def _half(part: torch.Tensor) -> torch.Tensor:
    """float32 [n, 1] of a float16 in two bytes."""
    return part.view(torch.float16).float()


def _nibbles(packed: torch.Tensor, run: int) -> torch.Tensor:
    """uint8 [n, 2 * bytes]: of each `run` bytes first all low halves, then all high ones."""
    halves = packed.reshape(len(packed), -1, 1, run)
    return torch.cat((halves & 15, halves >> 4), 2).flatten(1)


def _bits(packed: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """uint8 [n, count, ...]: `count` fields of `width` bits of every byte, the lowest first."""
    shifts = torch.arange(0, count * width, width, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(1) >> shifts[:, None]) & ((1 << width) - 1)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 32] of four bytes: bit i of them, as 16 or nothing."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (((packed.unsqueeze(2) >> shifts) & 1) << 4).flatten(1)


@cache
def _table(name: str, device: torch.device) -> torch.Tensor:
    """One of `NIBBLES`; kept, as nothing may be copied to a GPU while its steps are captured."""
    return torch.tensor(NIBBLES[name], dtype=torch.float32, device=device)


def _looked_up(numbers: torch.Tensor, name: str) -> torch.Tensor:
    """Look up the values of half bytes."""
    return _table(name, numbers.device)[numbers.int()]


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    scale, packed = _cut(blocks, 2)
    return _half(scale) * (_nibbles(packed, 16).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    scale, least, packed = _cut(blocks, 2, 2)
    return _half(scale) * _nibbles(packed, 16).float() + _half(least)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    scale, high, packed = _cut(blocks, 2, 4)
    return _half(scale) * ((_nibbles(packed, 16) | _fifth_bits(high)).float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    scale, least, high, packed = _cut(blocks, 2, 2, 4)
    return _half(scale) * (_nibbles(packed, 16) | _fifth_bits(high)).float() + _half(least)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    scale, numbers = _cut(blocks, 2)
    return numbers.view(torch.int8).float() * _half(scale)


def _k_scales(packed: torch.Tensor) -> Parts:
    """The eight scales and eight minima of a block of Q4_K or Q5_K, of 6 bits each: [n, 8, 1]."""
    low, high, mixed = packed.split(4, 1)
    scales = torch.cat((low & 63, (mixed & 15) | ((low >> 2) & 48)), 1)
    minima = torch.cat((high & 63, (mixed >> 4) | ((high >> 2) & 48)), 1)
    return scales.float().unsqueeze(2), minima.float().unsqueeze(2)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, least, packed, numbers = _cut(blocks, 2, 2, 12)
    scales, minima = _k_scales(packed)
    numbers = _nibbles(numbers, 32).view(-1, 8, 32)
    return _scaled(_half(scale), scales, numbers) - _half(least).unsqueeze(2) * minima


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, least, packed, high, numbers = _cut(blocks, 2, 2, 12, 32)
    scales, minima = _k_scales(packed)
    numbers = _nibbles(numbers, 32).view(-1, 8, 32) | (_bits(high, 8, 1) << 4)
    return _scaled(_half(scale), scales, numbers) - _half(least).unsqueeze(2) * minima


def _quarters(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 16, 16] of 64 bytes: of each half first all lowest pairs of bits, and so on."""
    halves = [_bits(half, 4, 2) for half in packed.split(32, 1)]
    return torch.stack(halves, 1).view(-1, 16, 16)


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    packed, numbers, scale, least = _cut(blocks, 16, 64, 2)
    scales, minima = ((packed >> shift & 15).float().unsqueeze(2) for shift in (0, 4))
    numbers = _quarters(numbers)
    return _scaled(_half(scale), scales, numbers) - _half(least).unsqueeze(2) * minima


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    high, low, packed, scale = _cut(blocks, 32, 64, 12)
    first, last = packed.split((8, 4), 1)
    of_sixteen = _nibbles(first, 8) | (_bits(last, 4, 2).flatten(1) << 4)
    numbers = _quarters(low) | (_bits(high, 8, 1).view(-1, 16, 16) << 2)
    scales = (of_sixteen.float() - 32).unsqueeze(2)
    return _scaled(_half(scale), scales, numbers.float() - 4)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low, high, scales, scale = _cut(blocks, 128, 64, 16)
    # Each half of a block: 64 bytes of low bits, and 32 bytes whose pairs of bits belong to them.
    numbers = _nibbles(low, 64).view(-1, 2, 4, 32)
    pairs = torch.stack([_bits(half, 4, 2) for half in high.split(32, 1)], 1)
    signed = (numbers | (pairs << 4)).float() - 32
    of_sixteen = scales.view(torch.int8).float().unsqueeze(2)
    return _scaled(_half(scale), of_sixteen, signed.view(-1, 16, 16))


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    scale, packed = _cut(blocks, 2)
    return _half(scale) * _looked_up(_nibbles(packed, 16), "IQ4")


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    scale, high, low, packed = _cut(blocks, 2, 2, 4)
    # Two bits of each byte above the half bytes, in the order of the scales.
    pairs = _bits(high, 4, 2).transpose(1, 2).flatten(1)
    scales = (_bits(low, 2, 4).transpose(1, 2).flatten(1) | (pairs << 4)).float() - 32
    numbers = _looked_up(_nibbles(packed, 16).view(-1, 8, 32), "IQ4")
    return _scaled(_half(scale), scales.unsqueeze(2), numbers)


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    exponent, packed = _cut(blocks, 1)
    # Half of 2 ** (exponent - 127), as the table has doubles.
    exponent = exponent.int()
    bits = torch.where(exponent < 2, 0x200000 << exponent, (exponent - 1) << 23)
    return bits.view(torch.float32) * _looked_up(_nibbles(packed, 16), "FP4")


def _fp4(blocks: torch.Tensor) -> torch.Tensor:
    head, scales, packed = _cut(blocks, 8, 8)
    factor, divisor = head.view(torch.float32).split(1, 1)
    groups = 2 * packed.shape[1] // FP4_GROUP
    scale = _fp8(scales[:, :groups].contiguous()) * factor / divisor
    # The table has each number twice as large.
    numbers = _looked_up(_nibbles(packed, 16), "FP4").view(-1, groups, FP4_GROUP)
    return (scale * 0.5).unsqueeze(2) * numbers


def _scaled(scale: torch.Tensor, scales: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Numbers [n, groups, len] times the block's scale [n, 1] times the group's [n, groups, 1]."""
    return (scale.unsqueeze(2) * scales) * numbers.float()


def _group(numbers: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def unpacked(blocks: torch.Tensor) -> torch.Tensor:
        head, rest = _cut(blocks, 8)
        scale, zero = head.view(torch.float32).split(1, 1)
        return scale * (numbers(rest) - zero)

    return unpacked


def _pairs(packed: torch.Tensor) -> torch.Tensor:
    """float32 [n, 2 * bytes]: all low halves, then all high ones."""
    return _nibbles(packed, packed.shape[1]).float()


def _fp8(packed: torch.Tensor) -> torch.Tensor:
    return packed.view(torch.float8_e4m3fn).float()


_UNPACK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "int4": _group(_pairs),
    "int8": _group(lambda packed: packed.float()),
    "fp8": _group(_fp8),
    "fp4": _fp4,
    **GRIDS,
}
