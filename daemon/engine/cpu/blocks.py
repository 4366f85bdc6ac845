"""How vector code reads the blocks of every format, 32 numbers at a time.

A block's numbers are worth scale * (code - zero), or scale * code + least: `codes` are bytes
without a sign, as products of integers take them; `floats` are the numbers themselves, bit for bit
those of `daemon.engine.quantised.unpack`.
"""

from functools import cached_property

from daemon.engine.cpu.vectors import FLOAT, I8, I16, I32, Value, Writer, lanes
from daemon.models.formats import WeightFormat

CHUNK_LEN = 32
"""Numbers that are read together; a format without blocks is read as if these were one."""
HALF_CHUNK = 16
"""Numbers of a vector of float32."""


class Block:
    """One block at an address; in chunks of 32 numbers."""

    zero = 0
    """What is taken off each code; formats with a zero or minimum of their own have 0 here."""
    rounds = True
    """Whether its numbers are codes with a scale, so that integers may be multiplied."""
    code_bits = 6
    """Bits of a code, at most."""
    scale_len = CHUNK_LEN
    """Numbers of one scale."""

    def __init__(self, writer: Writer, form: WeightFormat, address: Value) -> None:
        self.writer = writer
        self.builder = writer.builder
        self.form = form
        self.address = address

    @classmethod
    def size_bytes(cls, form: WeightFormat) -> int:
        """Bytes from one block to the next."""
        return form.block_bytes

    @classmethod
    def length(cls, form: WeightFormat) -> int:
        """Numbers of a block."""
        return form.block_len

    def codes(self, chunk: int) -> Value:
        """<32 x i8>: codes without a sign."""
        raise NotImplementedError

    @cached_property
    def scales(self) -> Value:
        """float32 lanes, one for each `scale_len` numbers."""
        raise NotImplementedError

    @cached_property
    def least(self) -> Value | None:
        """float32 lanes like `scales`: what is added to scale * code; None: nothing."""
        return None

    @cached_property
    def offsets(self) -> Value:
        """float32 lanes like `scales`: a number is scale * code + offset."""
        if self.least is not None:
            return self.least
        zero = self.writer.number(self.scales.type, -float(self.zero))
        return self.builder.fmul(self.scales, zero)

    def floats(self, chunk: int) -> list[Value]:
        """The numbers of a chunk: two of <16 x float>."""
        codes = self.codes(chunk)
        if self.zero:
            codes = self.builder.add(codes, self.writer.number(codes.type, -self.zero))
        return [self._worth(chunk, half, codes) for half in range(2)]

    def _worth(self, chunk: int, half: int, codes: Value) -> Value:
        index = (chunk * 2 + half) * HALF_CHUNK // self.scale_len
        numbers = self.as_floats(codes, half, bool(self.zero))
        scale = self.writer.pick(self.scales, [index] * HALF_CHUNK)
        if self.least is None:
            return self.builder.fmul(scale, numbers)
        least = self.writer.pick(self.least, [index] * HALF_CHUNK)
        return self.writer.muladd(scale, numbers, least)

    def as_floats(self, codes: Value, half: int, signed: bool) -> Value:
        """<16 x float> of one half of a chunk's codes."""
        part = self.writer.part(codes, HALF_CHUNK * half, HALF_CHUNK)
        extend = self.builder.sext if signed else self.builder.zext
        integers = extend(part, lanes(I32, HALF_CHUNK))
        return self.builder.sitofp(integers, lanes(FLOAT, HALF_CHUNK))

    def bytes_at(self, offset: int, count: int) -> Value:
        """Some bytes of the block."""
        return self.writer.load(lanes(I8, count), self.address, offset)

    def half_at(self, offset: int) -> Value:
        """<1 x float> of the float16 at an offset."""
        return self.writer.halves(self.writer.load(lanes(I16, 1), self.address, offset))

    def low(self, packed: Value) -> Value:
        """The low four bits of bytes."""
        return self.builder.and_(packed, self.writer.number(packed.type, 15))

    def shifted(self, packed: Value, bits: int) -> Value:
        """Bytes, down by some bits."""
        if not bits:
            return packed
        return self.builder.lshr(packed, self.writer.number(packed.type, bits))

    def spread(self, packed: Value) -> Value:
        """<32 x i8> of the nibbles of <16 x i8>: all low ones, then all high ones."""
        return self.writer.concat(self.low(packed), self.shifted(packed, 4))
