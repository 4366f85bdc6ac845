"""How the blocks of GGUF's K formats lie in memory: 256 numbers, whose scales have scales."""

from functools import cached_property

from daemon.engine.cpu.blocks import Block
from daemon.engine.cpu.vectors import FLOAT, I32, Value, lanes


class _FourK(Block):
    """Q4_K: a scale and a scale of minima, 12 bytes of scales and minima, 128 bytes.

    Of each 32 bytes first all low halves, then all high ones.
    """

    own_offsets = True
    packed_at = 16

    @cached_property
    def scales(self) -> Value:
        low, _, mixed = self._packed
        high = self.builder.and_(self.shifted(low, 2), self.writer.number(low.type, 48))
        last = self.builder.or_(self.low(mixed), high)
        return self._scaled(0, self.builder.and_(low, self.writer.number(low.type, 63)), last)

    @cached_property
    def least(self) -> Value:
        _, least, mixed = self._packed
        high = self.builder.and_(self.shifted(least, 2), self.writer.number(least.type, 48))
        last = self.builder.or_(self.shifted(mixed, 4), high)
        first = self.builder.and_(least, self.writer.number(least.type, 63))
        return self.builder.fneg(self._scaled(2, first, last))

    @cached_property
    def _packed(self) -> list[Value]:
        return [self.bytes_at(at, 4) for at in (4, 8, 12)]

    def _scaled(self, at: int, first: Value, last: Value) -> Value:
        integers = self.builder.zext(self.writer.concat(first, last), lanes(I32, 8))
        floats = self.builder.sitofp(integers, lanes(FLOAT, 8))
        return self.builder.fmul(self.writer.pick(self.half_at(at), [0] * 8), floats)

    def codes(self, chunk: int) -> Value:
        packed = self.bytes_at(self.packed_at + chunk // 2 * 32, 32)
        return self.shifted(packed, 4) if chunk % 2 else self.low(packed)


class _FiveK(_FourK):
    """Q5_K: as Q4_K, with 32 bytes of high bits in front of the 128."""

    packed_at = 48

    def codes(self, chunk: int) -> Value:
        bits = self.bytes_at(self.packed_at - 32, 32)
        bit = self.builder.and_(self.shifted(bits, chunk), self.writer.number(bits.type, 1))
        high = self.builder.shl(bit, self.writer.number(bits.type, 4))
        return self.builder.or_(super().codes(chunk), high)


class _SixK(Block):
    """Q6_K: 128 bytes of low bits, 64 of high ones, 16 scales with a sign, a scale."""

    zero = 32
    scale_len = 16

    @cached_property
    def scales(self) -> Value:
        integers = self.builder.sext(self.bytes_at(192, 16), lanes(I32, 16))
        floats = self.builder.sitofp(integers, lanes(FLOAT, 16))
        return self.builder.fmul(self.writer.pick(self.half_at(208), [0] * 16), floats)

    def codes(self, chunk: int) -> Value:
        side, quarter = divmod(chunk, 4)
        packed = self.bytes_at(64 * side + 32 * (quarter % 2), 32)
        low = self.shifted(packed, 4) if quarter >= 2 else self.low(packed)
        bits = self.shifted(self.bytes_at(128 + 32 * side, 32), 2 * quarter)
        two = self.builder.and_(bits, self.writer.number(bits.type, 3))
        return self.builder.or_(low, self.builder.shl(two, self.writer.number(bits.type, 4)))


class QuarterBytes(Block):
    """Each 32 bytes have two bits of four times 32 numbers, the lowest first."""

    scale_len = 16
    packed_at = 0

    def codes(self, chunk: int) -> Value:
        """See `Block`."""
        side, quarter = divmod(chunk, 4)
        packed = self.bytes_at(self.packed_at + 32 * side, 32)
        return self._bits(packed, 2 * quarter, 3)

    def _bits(self, packed: Value, shift: int, mask: int) -> Value:
        return self.builder.and_(self.shifted(packed, shift), self.writer.number(packed.type, mask))

    def _scaled(self, at: int, integers: Value) -> Value:
        """float32 lanes: 16 integers times the float16 at an offset."""
        floats = self.builder.sitofp(integers, lanes(FLOAT, 16))
        return self.builder.fmul(self.writer.pick(self.half_at(at), [0] * 16), floats)


class _TwoK(QuarterBytes):
    """Q2_K: 16 bytes of a scale and a minimum each, 64 bytes, a scale, a scale of minima."""

    own_offsets = True
    code_bits = 2
    packed_at = 16

    @cached_property
    def scales(self) -> Value:
        return self._scaled(80, self._wide(self.low(self._packed)))

    @cached_property
    def least(self) -> Value:
        return self.builder.fneg(self._scaled(82, self._wide(self.shifted(self._packed, 4))))

    @cached_property
    def _packed(self) -> Value:
        return self.bytes_at(0, 16)

    def _wide(self, integers: Value) -> Value:
        return self.builder.zext(integers, lanes(I32, 16))


class _ThreeK(QuarterBytes):
    """Q3_K: 32 bytes of third bits, 64 bytes, 12 bytes of scales of six bits, a scale."""

    zero = 4
    code_bits = 3
    packed_at = 32

    @cached_property
    def scales(self) -> Value:
        packed, pairs = self.bytes_at(96, 8), self.bytes_at(104, 4)
        low = self.writer.concat(self.low(packed), self.shifted(packed, 4))
        high = self.writer.joined([self._bits(pairs, shift, 3) for shift in (0, 2, 4, 6)])
        high = self.builder.shl(high, self.writer.number(high.type, 4))
        integers = self.builder.zext(self.builder.or_(low, high), lanes(I32, 16))
        return self._scaled(108, self.builder.sub(integers, self.writer.number(integers.type, 32)))

    def codes(self, chunk: int) -> Value:
        third = self._bits(self.bytes_at(0, 32), chunk, 1)
        third = self.builder.shl(third, self.writer.number(third.type, 2))
        return self.builder.or_(super().codes(chunk), third)


K_KINDS: dict[str, type[Block]] = {
    "Q2_K": _TwoK,
    "Q3_K": _ThreeK,
    "Q4_K": _FourK,
    "Q5_K": _FiveK,
    "Q6_K": _SixK,
}
