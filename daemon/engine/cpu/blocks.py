"""How vector code reads the blocks of every format, 32 numbers at a time.

A block's numbers are worth scale * (code - zero), or scale * code + least: `codes` are bytes
without a sign; `floats` are the numbers themselves, bit for bit those of
`daemon.engine.quantised.unpack`. Products of integers take `factors`: the codes, or codes of 8 bits
less 128 where the processor multiplies those faster (`Factors`).
"""

from collections.abc import Sequence
from enum import Enum
from functools import cached_property

from daemon.engine.cpu.vectors import FLOAT, I8, I16, I32, Value, Writer, lanes
from daemon.models.formats import WeightFormat

CHUNK_LEN = 32
"""Numbers that are read together; a format without blocks is read as if these were one."""
HALF_CHUNK = 16
"""Numbers of a vector of float32."""
_HALF_RANGE = 128


class Factors(Enum):
    """Factors that an integer product multiplies the rounded states with."""

    NARROW = "bytes below 128"
    WIDE = "bytes without a sign"
    SIGNED = "bytes with a sign: codes less 128"


class Block:
    """One block at an address; in chunks of 32 numbers."""

    zero = 0
    """Subtracted from each code; formats with a zero or minimum of their own have 0 here."""
    rounds = True
    """Whether its numbers are codes with a scale, so that integers may be multiplied."""
    own_offsets = False
    """Whether each scale has a zero or a minimum of its own."""
    code_bits = 6
    """Bits of a code, at most."""
    bits_apart = False
    """Whether a short block has the highest bits of all codes apart from the others."""
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

    @classmethod
    def kind_of_factors(cls, writer: Writer) -> Factors:
        """The factors that products take on this processor.

        AVX2 multiplies bytes without a sign by bytes with one, and sums pairs in 16 bits, where
        only magnitudes up to 128 fit; instructions that add fours in 32 bits take whole bytes.
        """
        if cls.code_bits < 8:
            return Factors.NARROW
        adds_fours = writer.has("avx512vnni") or writer.has("avxvnni")
        return Factors.SIGNED if writer.has("avx2") and not adds_fours else Factors.WIDE

    @classmethod
    def zero_of_factors(cls, writer: Writer) -> int:
        """The number subtracted from each factor, the same for all blocks."""
        signed = cls.kind_of_factors(writer) is Factors.SIGNED
        return cls.zero - _HALF_RANGE if signed else cls.zero

    def codes(self, chunk: int) -> Value:
        """<32 x i8>: codes without a sign."""
        raise NotImplementedError

    def factors(self, chunk: int) -> Value:
        """<32 x i8>: the factors of products, see `kind_of_factors`."""
        codes = self.codes(chunk)
        if self.kind_of_factors(self.writer) is not Factors.SIGNED:
            return codes
        return self.builder.xor(codes, self.writer.number(codes.type, -_HALF_RANGE))

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
        """float32 lanes like `scales`: a number is scale * code + offset; of `own_offsets`."""
        return self.least

    @cached_property
    def offsets_of_factors(self) -> Value:
        """float32 lanes like `scales`: a number is scale * factor + offset."""
        zero = self.zero_of_factors(self.writer)
        if not self.own_offsets:
            return self.builder.fmul(self.scales, self._in_lanes(-zero))
        if zero == self.zero:
            return self.offsets
        return self.writer.muladd(self.scales, self._in_lanes(self.zero - zero), self.offsets)

    def _in_lanes(self, number: int) -> Value:
        """A number in each lane of scales."""
        return self.writer.number(self.scales.type, float(number))

    @classmethod
    def scales_behind(cls, blocks: Sequence["Block"]) -> Value:
        """The scales of blocks, one behind the other."""
        return blocks[0].writer.joined([block.scales for block in blocks])

    @classmethod
    def offsets_behind(cls, blocks: Sequence["Block"]) -> Value:
        """The offsets of blocks' factors, one behind the other."""
        return blocks[0].writer.joined([block.offsets_of_factors for block in blocks])

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

    @staticmethod
    def halves_behind(blocks: Sequence["Block"], offset: int) -> Value:
        """float32 lanes of the float16 at an offset of each block: all are converted at once."""
        writer = blocks[0].writer
        return writer.halves(writer.joined([block.half_bits_at(offset) for block in blocks]))

    def half_at(self, offset: int) -> Value:
        """<1 x float> of the float16 at an offset."""
        return self.writer.halves(self.half_bits_at(offset))

    def half_bits_at(self, offset: int) -> Value:
        """<1 x i16>: the bits of the float16 at an offset."""
        return self.writer.load(lanes(I16, 1), self.address, offset)

    def float8s(self, packed: Value) -> Value:
        """float32 lanes of bytes of float8_e4m3fn."""
        kind = lanes(I16, packed.type.count)
        whole = self.builder.sext(packed, kind)
        size = self.builder.and_(whole, self.writer.number(kind, 0x7F))
        sign = self.builder.and_(whole, self.writer.number(kind, -0x8000))
        # float16's exponent has a bit more in front, and counts from 8 more.
        bits = self.builder.or_(self.builder.shl(size, self.writer.number(kind, 7)), sign)
        missing = self.builder.icmp_signed("==", size, self.writer.number(kind, 0x7F))
        bits = self.builder.select(missing, self.writer.number(kind, 0x7E00), bits)
        floats = self.writer.halves(bits)
        return self.builder.fmul(floats, self.writer.number(floats.type, 256.0))

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
