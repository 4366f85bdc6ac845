"""Numbers of quantised weights, read from their blocks: one function for each format.

They mean what `daemon.engine.quantised.unpack` says, bit for bit in float32: no product of theirs
that is added to something needs more than float32's 24 bits, so that it is the same whether or not
a compiler rounds it between.

A block is cut into groups of numbers that share a scale. A function takes where blocks begin
(uint8 pointers), which group of its block is meant, and where in the group a number stands, as
tensors that broadcast: so what belongs to a group is read and computed once for all of its numbers.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import struct
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from daemon.models.formats import FP4_GROUP, FP4_HEAD_BYTES, NIBBLES, WeightFormat

_FP8_UNIT = tl.constexpr(256.0)
"""The bits of an fp8 number in their places of a float16 mean 1 / 256 of it."""
_FP8_NAN = tl.constexpr(0x7F)
_FP4_HEAD = tl.constexpr(FP4_HEAD_BYTES)
_IQ4, _FP4 = (
    tl.constexpr(struct.unpack("<4i", struct.pack("<16b", *NIBBLES[name])))
    for name in ("IQ4", "FP4")
)
"""Tables of 16 numbers of a byte, four by four."""
_UNPACKED_ROWS = 16
_UNPACKED_COLUMNS = 256


@dataclass(frozen=True, slots=True)
class BlockKind:
    """How kernels read the blocks of a format."""

    numbers: Any  # one of the functions below
    group_len: int  # numbers
    block_groups: int
    block_bytes: int

    @staticmethod
    def of(form: WeightFormat) -> "BlockKind":
        """Make it for a format that has blocks."""
        name = form.name.partition("/")[0]
        group_len = _GROUP_LENS.get(name, form.block_len)
        return BlockKind(_NUMBERS[name], group_len, form.block_len // group_len, form.block_bytes)

    def constants(self, columns: int) -> dict[str, Any]:
        """Its compile-time constants for kernels, for tiles of `columns` columns."""
        return {
            "NUMBERS": self.numbers,
            "GROUPS": columns // self.group_len,
            "GROUP_LEN": self.group_len,
            "BLOCK_GROUPS": self.block_groups,
            "BLOCK_BYTES": self.block_bytes,
        }


def unpack_rows(
    form: WeightFormat, data: torch.Tensor, out: torch.Tensor, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """`out` [N, K] in any type of `data` uint8 [N, bytes of K numbers], both dense.

    `rows` int [N], where they are given: which rows of `data` are wanted.
    """
    if not out.numel():
        return out
    kind = BlockKind.of(form)
    count, columns = out.shape
    grid = triton.cdiv(count, _UNPACKED_ROWS), triton.cdiv(columns, _UNPACKED_COLUMNS)
    _unpack[grid](
        data, rows, out, count, columns, data.shape[1],
        ROWS=_UNPACKED_ROWS, **kind.constants(_UNPACKED_COLUMNS), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["count"])
def _unpack(
    data_ptr, rows_ptr, out_ptr, count, columns, row_bytes,
    ROWS: tl.constexpr, NUMBERS: tl.constexpr, GROUPS: tl.constexpr, GROUP_LEN: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
):  # fmt: skip
    """ROWS rows of GROUPS groups."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    # What lies beyond the last repeats it, and is not written.
    taken = tl.minimum(row, count - 1)
    if rows_ptr is not None:
        taken = tl.load(rows_ptr + taken)
    start = data_ptr + taken.to(tl.int64) * row_bytes
    inside = tl.minimum(group, columns // GROUP_LEN - 1)
    numbers = tile(start, inside, NUMBERS, GROUP_LEN, BLOCK_GROUPS, BLOCK_BYTES)
    column = group[:, None] * GROUP_LEN + tl.arange(0, GROUP_LEN)[None, :]
    cells = row.to(tl.int64)[:, None, None] * columns + column[None, :, :]
    mask = (row < count)[:, None, None] & (column < columns)[None, :, :]
    tl.store(out_ptr + cells, numbers.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def tile(
    start, group, NUMBERS: tl.constexpr, GROUP_LEN: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):  # fmt: skip
    """float32 [R, G, GROUP_LEN] of rows that begin at `start` [R]; `group` [G] counts in a row."""
    blocks = start[:, None, None] + (group // BLOCK_GROUPS * BLOCK_BYTES)[None, :, None]
    within = (group % BLOCK_GROUPS)[None, :, None]
    return NUMBERS(blocks, within, tl.arange(0, GROUP_LEN)[None, None, :], GROUP_LEN)


@triton.jit
def q4_0(block, group, at, LEN: tl.constexpr):
    """Scale, 32 half bytes: those of the first half are the low ones."""
    return _half(block) * (_nibble(block + 2, at, LEN // 2).to(tl.float32) - 8)


@triton.jit
def q4_1(block, group, at, LEN: tl.constexpr):
    """Scale, least number, 32 half bytes."""
    return _half(block) * _nibble(block + 4, at, LEN // 2).to(tl.float32) + _half(block + 2)


@triton.jit
def q5_0(block, group, at, LEN: tl.constexpr):
    """Scale, 32 fifth bits, 32 half bytes."""
    number = _nibble(block + 6, at, LEN // 2) | _fifth(block + 2, at)
    return _half(block) * (number.to(tl.float32) - 16)


@triton.jit
def q5_1(block, group, at, LEN: tl.constexpr):
    """Scale, least number, 32 fifth bits, 32 half bytes."""
    number = _nibble(block + 8, at, LEN // 2) | _fifth(block + 4, at)
    return _half(block) * number.to(tl.float32) + _half(block + 2)


@triton.jit
def q8_0(block, group, at, LEN: tl.constexpr):
    """Scale, 32 signed bytes."""
    return _half(block) * _signed(block + 2 + at)


@triton.jit
def iq4_nl(block, group, at, LEN: tl.constexpr):
    """Scale, 32 half bytes that stand for numbers of a table."""
    return _half(block) * _of_table(_nibble(block + 2, at, LEN // 2), _IQ4)


@triton.jit
def iq4_xs(block, group, at, LEN: tl.constexpr):
    """Scale, high and low bits of 8 scales, half bytes as those of IQ4_NL."""
    low = tl.load(block + 4 + group // 2) >> (group % 2 * 4).to(tl.uint8)
    high = (tl.load(block + 2 + group // 4) >> (group % 4 * 2).to(tl.uint8)) & 3
    scale = ((low & 15) | (high << 4)).to(tl.float32) - 32
    number = _of_table(_nibble(block + 8 + group * (LEN // 2), at, LEN // 2), _IQ4)
    return (_half(block) * scale) * number


@triton.jit
def mxfp4(block, group, at, LEN: tl.constexpr):
    """Half of a power of two, 32 half bytes that stand for numbers of a table."""
    exponent = tl.load(block).to(tl.int32)
    bits = tl.where(exponent < 2, 0x200000 << (exponent & 1), (exponent - 1) << 23)
    number = _of_table(_nibble(block + 1, at, LEN // 2), _FP4)
    return bits.to(tl.float32, bitcast=True) * number


@triton.jit
def fp4(block, group, at, LEN: tl.constexpr):
    """Factor and divisor as float32, 8 scales, half bytes that stand for numbers of a table."""
    head = block.to(tl.pointer_type(tl.float32), bitcast=True)
    scale = _float8(tl.load(block + 8 + group)) * tl.load(head)
    number = _of_table(_pair_nibble(block + _FP4_HEAD, group, at, LEN), _FP4)
    return (tl.div_rn(scale, tl.load(head + 1)) * 0.5) * number


@triton.jit
def q2_k(block, group, at, LEN: tl.constexpr):
    """16 scales and minima of four bits, pairs of bits, the scales' scale and the minima's."""
    both = tl.load(block + group)
    number = _quarter(block + 16, group, at, LEN).to(tl.float32)
    scaled = (_half(block + 80) * (both & 15).to(tl.float32)) * number
    return scaled - _half(block + 82) * (both >> 4).to(tl.float32)


@triton.jit
def q3_k(block, group, at, LEN: tl.constexpr):
    """Third bits, pairs of bits, 16 scales of six bits, and theirs.

    Of the scales' low bits the first eight are the low halves of eight bytes; four more bytes have
    two high bits of every fourth.
    """
    third = (tl.load(block + group % 2 * LEN + at) >> (group // 2).to(tl.uint8)) & 1
    number = (_quarter(block + 32, group, at, LEN) | (third << 2)).to(tl.float32) - 4
    low = tl.load(block + 96 + group % 8) >> (group // 8 * 4).to(tl.uint8)
    high = (tl.load(block + 104 + group % 4) >> (group // 4 * 2).to(tl.uint8)) & 3
    scale = ((low & 15) | (high << 4)).to(tl.float32) - 32
    return (_half(block + 108) * scale) * number


@triton.jit
def q4_k(block, group, at, LEN: tl.constexpr):
    """Scale, least number, 8 pairs of six bits for them, half bytes in pairs of groups."""
    return _of_eight(block, group, _pair_nibble(block + 16, group, at, LEN))


@triton.jit
def q5_k(block, group, at, LEN: tl.constexpr):
    """As Q4_K, with fifth bits in front of the half bytes: of each byte one for every group."""
    fifth = ((tl.load(block + 16 + at) >> group.to(tl.uint8)) & 1) << 4
    return _of_eight(block, group, _pair_nibble(block + 48, group, at, LEN) | fifth)


@triton.jit
def q6_k(block, group, at, LEN: tl.constexpr):
    """Half bytes, pairs of bits above them, 16 signed scales, and theirs.

    Of each eight groups the first four are low halves, the others high ones of the same 64 bytes;
    their 32 bytes of pairs hold two groups at each of four places.
    """
    half, in_half = group // 8, group % 8
    low = tl.load(block + half * 64 + in_half % 4 * LEN + at) >> (in_half // 4 * 4).to(tl.uint8)
    pairs = tl.load(block + 128 + half * 32 + in_half % 2 * LEN + at)
    high = (pairs >> (in_half // 2 * 2).to(tl.uint8)) & 3
    number = ((low & 15) | (high << 4)).to(tl.float32) - 32
    return (_half(block + 208) * _signed(block + 192 + group)) * number


@triton.jit
def int4(block, group, at, LEN: tl.constexpr):
    """Scale and zero as float32, half bytes."""
    return _grouped(block, _nibble(block + 8, at, LEN // 2).to(tl.float32))


@triton.jit
def int8(block, group, at, LEN: tl.constexpr):
    """Scale and zero as float32, bytes."""
    return _grouped(block, tl.load(block + 8 + at).to(tl.float32))


@triton.jit
def fp8(block, group, at, LEN: tl.constexpr):
    """Scale and zero as float32, numbers of four bits of exponent and three of mantissa."""
    return _grouped(block, _float8(tl.load(block + 8 + at)))


@triton.jit
def _half(at):
    """The float16 at some bytes."""
    return tl.load(at.to(tl.pointer_type(tl.float16), bitcast=True)).to(tl.float32)


@triton.jit
def _float8(byte):
    """Numbers of e4m3."""
    # Processors before Ada do not know them: the bits go to where a float16 has such bits.
    bits = byte.to(tl.uint16)
    half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
    number = half.to(tl.float32) * _FP8_UNIT
    return tl.where((bits & 0x7F) == _FP8_NAN, float("nan"), number)


@triton.jit
def _signed(at):
    return tl.load(at).to(tl.int8, bitcast=True).to(tl.float32)


@triton.jit
def _nibble(packed, at, RUN: tl.constexpr):
    """Unpack RUN bytes: first all low halves, then all high ones."""
    return (tl.load(packed + at % RUN) >> (at // RUN * 4).to(tl.uint8)) & 15


@triton.jit
def _pair_nibble(packed, group, at, LEN: tl.constexpr):
    """Half bytes of two groups share LEN bytes, the first has the low ones."""
    return (tl.load(packed + group // 2 * LEN + at) >> (group % 2 * 4).to(tl.uint8)) & 15


@triton.jit
def _quarter(packed, group, at, LEN: tl.constexpr):
    """Two bits of a number: of each eight groups each two share 32 bytes, the first lowest."""
    in_half = group % 8
    bits = tl.load(packed + group // 8 * 2 * LEN + in_half % 2 * LEN + at)
    return (bits >> (in_half // 2 * 2).to(tl.uint8)) & 3


@triton.jit
def _of_table(nibble, TABLE: tl.constexpr):
    """Look up the values of half bytes."""
    low, high = tl.where(nibble < 4, TABLE[0], TABLE[1]), tl.where(nibble < 12, TABLE[2], TABLE[3])
    four = tl.where(nibble < 8, low, high)
    return (four >> (nibble % 4 * 8).to(tl.int32)).to(tl.int8).to(tl.float32)


@triton.jit
def _fifth(packed, at):
    """One of 32 bits, as 16 or nothing."""
    return ((tl.load(packed + at // 8) >> (at % 8).to(tl.uint8)) & 1) << 4


@triton.jit
def _of_eight(block, group, number):
    """A group's scale and least number of six bits, in twelve bytes of eight groups' ones."""
    four = group % 4
    low, high = tl.load(block + 4 + four), tl.load(block + 8 + four)
    mixed = tl.load(block + 12 + four)
    first = group < 4
    scale = tl.where(first, low & 63, (mixed & 15) | ((low >> 2) & 48))
    least = tl.where(first, high & 63, (mixed >> 4) | ((high >> 2) & 48))
    scaled = (_half(block) * scale.to(tl.float32)) * number.to(tl.float32)
    return scaled - _half(block + 2) * least.to(tl.float32)


@triton.jit
def _grouped(block, number):
    head = block.to(tl.pointer_type(tl.float32), bitcast=True)
    return tl.load(head) * (number - tl.load(head + 1))


_NUMBERS = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "int4": int4,
    "int8": int8,
    "fp8": fp8,
    "fp4": fp4,
}
_GROUP_LENS = {
    **dict.fromkeys(("Q2_K", "Q3_K", "Q6_K"), 16),
    **dict.fromkeys(("Q4_K", "Q5_K", "IQ4_XS"), 32),
    "fp4": FP4_GROUP,
}
"""Group lengths of formats whose blocks have several groups."""
