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
        one = self.builder.and_(self.shifted(bits, chunk), self.writer.number(bits.type, 1))
        high = self.builder.shl(one, self.writer.number(bits.type, 4))
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


K_KINDS: dict[str, type[Block]] = {
    "Q4_K": _FourK,
    "Q5_K": _FiveK,
    "Q6_K": _SixK,
}
