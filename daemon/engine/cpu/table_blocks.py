"""How blocks lie in memory whose half bytes stand for numbers of a table."""

from collections.abc import Sequence
from functools import cached_property

from daemon.engine.cpu.blocks import Block
from daemon.engine.cpu.vectors import FLOAT, I16, I32, Value, lanes
from daemon.models.formats import FP4_GROUP, FP4_HEAD_BYTES, NIBBLES

_IQ4_ZERO = 128
"""Not 127, as would do: so AVX2 multiplies the table's own numbers, from which nothing is taken."""


class _Table(Block):
    """Chunks of 16 bytes, the low halves first; codes are the table's numbers and `zero` added."""

    table: tuple[int, ...]
    packed_at: int

    def codes(self, chunk: int) -> Value:
        nibbles = self.spread(self.bytes_at(self.packed_at + 16 * chunk, 16))
        return self.writer.looked_up([self.zero + number for number in self.table], nibbles)


class _FourOfTable(_Table):
    """IQ4_NL: a scale, 16 bytes."""

    table = NIBBLES["IQ4"]
    zero = _IQ4_ZERO
    code_bits = 8
    packed_at = 2

    @cached_property
    def scales(self) -> Value:
        return self.half_at(0)

    @classmethod
    def scales_behind(cls, blocks: Sequence[Block]) -> Value:
        return cls.halves_behind(blocks, 0)


class _FourOfTableScaled(_Table):
    """IQ4_XS: a scale, 2 bytes of high and 4 of low bits of 8 scales, 128 bytes."""

    table = NIBBLES["IQ4"]
    zero = _IQ4_ZERO
    code_bits = 8
    packed_at = 8

    @cached_property
    def scales(self) -> Value:
        wide = lanes(I32, 8)
        high = self.builder.zext(self.writer.load(I16, self.address, 2), I32)
        fields = []
        for packed, bits in ((self.writer.load(I32, self.address, 4), 4), (high, 2)):
            shifts = wide([bits * index for index in range(8)])
            part = self.builder.lshr(self.writer.splat(packed, 8), shifts)
            fields.append(self.builder.and_(part, self.writer.number(wide, 2**bits - 1)))
        integers = self.builder.or_(
            fields[0], self.builder.shl(fields[1], self.writer.number(wide, 4))
        )
        integers = self.builder.sub(integers, self.writer.number(wide, 32))
        floats = self.builder.sitofp(integers, lanes(FLOAT, 8))
        return self.builder.fmul(self.writer.pick(self.half_at(0), [0] * 8), floats)


class _FourFloat(_Table):
    """MXFP4: a power of two, 16 bytes; the table has each number twice as large."""

    table = NIBBLES["FP4"]
    zero = 12
    code_bits = 5
    packed_at = 1

    @cached_property
    def scales(self) -> Value:
        return self._powers([self])

    @classmethod
    def scales_behind(cls, blocks: Sequence[Block]) -> Value:
        return cls._powers(blocks)

    @staticmethod
    def _powers(blocks: Sequence[Block]) -> Value:
        """float32 lanes: half of 2 ** (byte - 127) of the first byte of each block."""
        writer, builder = blocks[0].writer, blocks[0].builder
        wide = lanes(I32, len(blocks))
        exponents = builder.zext(writer.joined([block.bytes_at(0, 1) for block in blocks]), wide)
        usual = builder.shl(builder.sub(exponents, writer.number(wide, 1)), writer.number(wide, 23))
        # The two smallest have no exponent of their own.
        small = builder.icmp_unsigned("<", exponents, writer.number(wide, 2))
        shifts = builder.and_(exponents, writer.number(wide, 1))
        tiny = builder.shl(writer.number(wide, 0x200000), shifts)
        return builder.bitcast(builder.select(small, tiny, usual), lanes(FLOAT, len(blocks)))


class _FourFloatScaled(_Table):
    """NVFP4: a factor, a divisor, 8 bytes of scales, chunks of 16 bytes; the table as MXFP4's."""

    table = NIBBLES["FP4"]
    zero = 12
    code_bits = 5
    scale_len = FP4_GROUP
    packed_at = FP4_HEAD_BYTES

    @cached_property
    def scales(self) -> Value:
        count = self.form.block_len // FP4_GROUP
        factor, divisor = (
            self.writer.pick(self.writer.load(lanes(FLOAT, 1), self.address, at), [0] * count)
            for at in (0, 4)
        )
        scaled = self.builder.fmul(self.float8s(self.bytes_at(8, count)), factor)
        whole = self.builder.fdiv(scaled, divisor)
        return self.builder.fmul(whole, self.writer.number(whole.type, 0.5))


TABLE_KINDS: dict[str, type[Block]] = {
    "IQ4_NL": _FourOfTable,
    "IQ4_XS": _FourOfTableScaled,
    "MXFP4": _FourFloat,
    "fp4": _FourFloatScaled,
}
