"""How the blocks of each format lie in memory, as vector code reads them."""

from collections.abc import Sequence
from functools import cached_property

from daemon.engine.cpu.blocks import CHUNK_LEN, HALF_CHUNK, Block
from daemon.engine.cpu.grid_blocks import GRID_KINDS
from daemon.engine.cpu.k_blocks import K_KINDS
from daemon.engine.cpu.table_blocks import TABLE_KINDS
from daemon.engine.cpu.vectors import BIT, FLOAT, I16, I32, Value, lanes
from daemon.models.formats import WeightFormat

_GROUP_HEAD_BYTES = 8


class _Plain(Block):
    """Numbers without blocks, read 32 at a time."""

    rounds = False

    @classmethod
    def size_bytes(cls, form: WeightFormat) -> int:
        return form.block_bytes * CHUNK_LEN

    @classmethod
    def length(cls, form: WeightFormat) -> int:
        return CHUNK_LEN

    def floats(self, chunk: int) -> list[Value]:
        size_bytes = self.form.block_bytes * HALF_CHUNK
        return [self._sixteen(half * size_bytes) for half in range(2)]

    def _sixteen(self, offset: int) -> Value:
        if self.form.name == "F32":
            return self.writer.load(lanes(FLOAT, HALF_CHUNK), self.address, offset)
        bits = self.writer.load(lanes(I16, HALF_CHUNK), self.address, offset)
        if self.form.name == "F16":
            return self.writer.halves(bits)
        wide = lanes(I32, HALF_CHUNK)
        high = self.builder.shl(self.builder.zext(bits, wide), self.writer.number(wide, 16))
        return self.builder.bitcast(high, lanes(FLOAT, HALF_CHUNK))


class _Four(Block):
    """Q4_0: a scale, 16 bytes."""

    zero = 8
    code_bits = 4
    packed_at = 2

    @cached_property
    def scales(self) -> Value:
        return self.half_at(0)

    @classmethod
    def scales_behind(cls, blocks: Sequence[Block]) -> Value:
        return cls.halves_behind(blocks, 0)

    def codes(self, chunk: int) -> Value:
        return self.spread(self.bytes_at(self.packed_at, 16))


class _FourLeast(_Four):
    """Q4_1: a scale, a minimum, 16 bytes."""

    zero = 0
    own_offsets = True
    packed_at = 4

    @cached_property
    def least(self) -> Value:
        return self.half_at(2)

    @classmethod
    def offsets_behind(cls, blocks: Sequence[Block]) -> Value:
        return cls.halves_behind(blocks, 2)


class _Five(_Four):
    """Q5_0: a scale, 32 high bits, 16 bytes."""

    zero = 16
    code_bits = 5
    bits_apart = True
    packed_at = 6

    def codes(self, chunk: int) -> Value:
        fours = super().codes(chunk)
        bits = self.writer.load(I32, self.address, self.packed_at - 4)
        chosen = self.builder.bitcast(bits, lanes(BIT, CHUNK_LEN))
        sixteen = self.writer.number(fours.type, 16)
        high = self.builder.select(chosen, sixteen, self.writer.number(fours.type, 0))
        return self.builder.or_(fours, high)


class _FiveLeast(_Five):
    """Q5_1: a scale, a minimum, 32 high bits, 16 bytes."""

    zero = 0
    own_offsets = True
    packed_at = 8

    @cached_property
    def least(self) -> Value:
        return self.half_at(2)

    @classmethod
    def offsets_behind(cls, blocks: Sequence[Block]) -> Value:
        return cls.halves_behind(blocks, 2)


class _Eight(_Four):
    """Q8_0: a scale, 32 numbers with a sign."""

    zero = 128
    code_bits = 8

    def codes(self, chunk: int) -> Value:
        signed = self.bytes_at(2, CHUNK_LEN)
        return self.builder.xor(signed, self.writer.number(signed.type, -128))


class _Group(Block):
    """A scale and a zero, float32 each, and bytes: int8."""

    own_offsets = True
    code_bits = 8

    @cached_property
    def scales(self) -> Value:
        return self.writer.pick(self._head(0), [0] * self._count)

    @cached_property
    def offsets(self) -> Value:
        product = self.builder.fmul(self._head(0), self._head(4))
        return self.writer.pick(self.builder.fneg(product), [0] * self._count)

    @property
    def _count(self) -> int:
        return self.form.block_len // CHUNK_LEN

    def _head(self, at: int) -> Value:
        return self.writer.load(lanes(FLOAT, 1), self.address, at)

    def codes(self, chunk: int) -> Value:
        return self.bytes_at(_GROUP_HEAD_BYTES + CHUNK_LEN * chunk, CHUNK_LEN)

    def floats(self, chunk: int) -> list[Value]:
        codes = self.codes(chunk)
        numbers = [self.as_floats(codes, half, False) for half in range(2)]
        scale, zero = (self.writer.pick(self._head(at), [0] * HALF_CHUNK) for at in (0, 4))
        return [self.builder.fmul(scale, self.builder.fsub(part, zero)) for part in numbers]


class _GroupOfFour(_Group):
    """A scale and a zero, and nibbles: of all bytes the low halves, then the high ones."""

    code_bits = 4

    def codes(self, chunk: int) -> Value:
        half_len = self.form.block_len // 2
        if half_len == HALF_CHUNK:
            return self.spread(self.bytes_at(_GROUP_HEAD_BYTES, HALF_CHUNK))
        high, first = divmod(chunk * CHUNK_LEN, half_len)
        packed = self.bytes_at(_GROUP_HEAD_BYTES + first, CHUNK_LEN)
        return self.shifted(packed, 4) if high else self.low(packed)


class _GroupOfFloats(_Group):
    """A scale and a zero, and bytes of float8_e4m3fn."""

    rounds = False

    def as_floats(self, codes: Value, half: int, signed: bool) -> Value:
        return self.float8s(self.writer.part(codes, HALF_CHUNK * half, HALF_CHUNK))


_KINDS: dict[str, type[Block]] = {
    "F32": _Plain,
    "F16": _Plain,
    "BF16": _Plain,
    "Q4_0": _Four,
    "Q4_1": _FourLeast,
    "Q5_0": _Five,
    "Q5_1": _FiveLeast,
    "Q8_0": _Eight,
    **K_KINDS,
    **TABLE_KINDS,
    **GRID_KINDS,
    "int4": _GroupOfFour,
    "int8": _Group,
    "fp8": _GroupOfFloats,
}


def reader(form: WeightFormat) -> type[Block]:
    """The class that reads the blocks of a format."""
    return _KINDS[form.name.partition("/")[0]]
