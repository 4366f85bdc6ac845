"""How the blocks of GGUF's IQ1, IQ2 and IQ3 lie in memory: 256 numbers, in runs from a table.

Codes are a run's numbers, with their signs and `zero` added. A table's sizes have no signs: these
are a bit each, or seven bits for eight numbers of which an even count is negative.
"""

from functools import cached_property

from daemon.engine.cpu.blocks import CHUNK_LEN, Block
from daemon.engine.cpu.k_blocks import QuarterBytes
from daemon.engine.cpu.vectors import BIT, FLOAT, I8, I16, I32, I64, Value, lanes
from daemon.engine.quantised.grids import TERNARY_STEPS, grid

_CHUNKS = 8
_RUN_LEN = 8
"""Numbers that have a byte of signs."""


class _Grid(Block):
    """Numbers of a table, times scales."""

    zero = 64
    code_bits = 7

    def codes(self, chunk: int) -> Value:
        numbers = self._looked_up(self._indices(chunk))
        zero = self.writer.number(numbers.type, self.zero)
        negative = self.builder.bitcast(self._signs(chunk), lanes(BIT, CHUNK_LEN))
        below, above = self.builder.sub(zero, numbers), self.builder.add(zero, numbers)
        return self.builder.select(negative, below, above)

    def _looked_up(self, indices: list[Value]) -> Value:
        """<32 x i8> of the table's runs at int64 indices."""
        numbers = grid(self.form.name)
        size_bytes = numbers.shape[1]
        table = self.writer.table(f"llmd.{self.form.name}", numbers.tobytes())
        kind = I64 if size_bytes == _RUN_LEN else I32
        places = (self.writer.step(table, index, size_bytes) for index in indices)
        runs = [self.writer.single(self.writer.load(kind, place)) for place in places]
        return self.builder.bitcast(self.writer.joined(runs), lanes(I8, CHUNK_LEN))

    def _indices(self, chunk: int) -> list[Value]:
        """int64: where in the table a chunk's runs are."""
        raise NotImplementedError

    def _signs(self, chunk: int) -> Value:
        """int32: a bit for each number of a chunk, set where it is negative."""
        raise NotImplementedError

    def _at(self, kind: Value, offset: int) -> Value:
        """An integer of the block as int64."""
        return self.builder.zext(self.writer.load(kind, self.address, offset), I64)

    def _bits(self, number: Value, shift: int, count: int) -> Value:
        """Some bits of an integer."""
        shifted = self.builder.lshr(number, self.writer.number(number.type, shift))
        return self.builder.and_(shifted, self.writer.number(number.type, 2**count - 1))

    def _with_high(self, low: Value, high: Value, shift: int) -> Value:
        return self.builder.or_(low, self.builder.shl(high, self.writer.number(low.type, shift)))

    def _even_signs(self, fields: list[Value]) -> Value:
        """int32 of four int64 of seven bits: each with an eighth that makes its count even."""
        signs = fields[0]
        for run, field in enumerate(fields[1:], 1):
            signs = self._with_high(signs, field, 8 * run)
        odd = signs
        for shift in (4, 2, 1):
            odd = self.builder.xor(odd, self.builder.lshr(odd, self.writer.number(I64, shift)))
        odd = self.builder.and_(odd, self.writer.number(I64, 0x01010101))
        return self.builder.trunc(self._with_high(signs, odd, 7), I32)

    def _scaled(self, integers: Value, half: float, by: float) -> Value:
        """float32 lanes: (integers + half) * by, times the float16 at the front."""
        kind = lanes(FLOAT, integers.type.count)
        floats = self.builder.sitofp(integers, kind)
        floats = self.builder.fadd(floats, self.writer.number(kind, half))
        whole = self.writer.pick(self.half_at(0), [0] * kind.count)
        return self.builder.fmul(self.builder.fmul(whole, floats), self.writer.number(kind, by))

    def _nibbles(self, offset: int, count: int) -> Value:
        """int32 lanes of half bytes, the low one first."""
        packed = self.bytes_at(offset, count)
        order = [place + half * count for place in range(count) for half in range(2)]
        both = self.writer.pick(self.low(packed), order, self.shifted(packed, 4))
        return self.builder.zext(both, lanes(I32, 2 * count))

    def _top_bits(self, offset: int, step: int) -> Value:
        """int32 lanes: the four highest bits of the int32 numbers that lie `step` bytes apart."""
        words = [
            self.writer.single(self.writer.load(I32, self.address, offset + step * chunk))
            for chunk in range(_CHUNKS)
        ]
        numbers = self.writer.joined(words)
        return self.builder.lshr(numbers, self.writer.number(numbers.type, 28))


class _Iq2Xxs(_Grid):
    """IQ2_XXS: a scale; of each 32 numbers four bytes of indices, 28 bits of signs, four bits."""

    @cached_property
    def scales(self) -> Value:
        return self._scaled(self._top_bits(6, 8), 0.5, 0.25)

    def _indices(self, chunk: int) -> list[Value]:
        return [self._at(I8, 2 + 8 * chunk + run) for run in range(4)]

    def _signs(self, chunk: int) -> Value:
        packed = self._at(I32, 6 + 8 * chunk)
        return self._even_signs([self._bits(packed, 7 * run, 7) for run in range(4)])


class _Iq2Xs(_Grid):
    """IQ2_XS: a scale; nine bits of index and seven of signs for each 8 numbers; 16 half bytes."""

    scale_len = 16

    @cached_property
    def scales(self) -> Value:
        return self._scaled(self._nibbles(66, 8), 0.5, 0.25)

    def _pairs(self, chunk: int) -> list[Value]:
        return [self._at(I16, 2 + 8 * chunk + 2 * run) for run in range(4)]

    def _indices(self, chunk: int) -> list[Value]:
        return [self._bits(pair, 0, 9) for pair in self._pairs(chunk)]

    def _signs(self, chunk: int) -> Value:
        return self._even_signs([self._bits(pair, 9, 7) for pair in self._pairs(chunk)])


class _Iq2S(_Grid):
    """IQ2_S: a scale, 32 low bytes of indices, 32 of signs, 8 of high bits, 16 half bytes."""

    scale_len = 16

    @cached_property
    def scales(self) -> Value:
        return self._scaled(self._nibbles(74, 8), 0.5, 0.25)

    def _indices(self, chunk: int) -> list[Value]:
        high = self._at(I8, 66 + chunk)
        return [
            self._with_high(self._at(I8, 2 + 4 * chunk + run), self._bits(high, 2 * run, 2), 8)
            for run in range(4)
        ]

    def _signs(self, chunk: int) -> Value:
        return self.writer.load(I32, self.address, 34 + 4 * chunk)


class _Iq3Xxs(_Grid):
    """IQ3_XXS: a scale, 64 bytes of indices; of each 32 numbers 28 bits of signs, four bits."""

    @cached_property
    def scales(self) -> Value:
        return self._scaled(self._top_bits(66, 4), 0.5, 0.5)

    def _indices(self, chunk: int) -> list[Value]:
        return [self._at(I8, 2 + 8 * chunk + run) for run in range(8)]

    def _signs(self, chunk: int) -> Value:
        packed = self._at(I32, 66 + 4 * chunk)
        return self._even_signs([self._bits(packed, 7 * run, 7) for run in range(4)])


class _Iq3S(_Grid):
    """IQ3_S: a scale, 64 low bytes of indices, 8 of high bits, 32 of signs, 8 half bytes."""

    zero = 16
    code_bits = 5

    @cached_property
    def scales(self) -> Value:
        return self._scaled(self._nibbles(106, 4), 0.5, 2.0)

    def _indices(self, chunk: int) -> list[Value]:
        high = self._at(I8, 66 + chunk)
        return [
            self._with_high(self._at(I8, 2 + 8 * chunk + run), self._bits(high, run, 1), 8)
            for run in range(8)
        ]

    def _signs(self, chunk: int) -> Value:
        return self.writer.load(I32, self.address, 74 + 4 * chunk)


class _Iq1(_Grid):
    """Numbers -1, 0 and 1, an eighth more or less: codes are eighths, and `zero` added."""

    zero = 16
    code_bits = 5

    def codes(self, chunk: int) -> Value:
        eighths = self._looked_up(self._indices(chunk))
        shifts = [self.writer.single(shift) for shift in self._shifts(chunk)]
        wide = self.writer.pick(
            self.writer.joined(shifts), [number // _RUN_LEN for number in range(CHUNK_LEN)]
        )
        # A bit that is set takes an eighth away.
        less = self.builder.add(wide, wide)
        above = self.builder.sub(self.writer.number(wide.type, self.zero + 1), less)
        return self.builder.add(eighths, above)

    def _shifts(self, chunk: int) -> list[Value]:
        """int8: a bit for each run of 8."""
        raise NotImplementedError

    def _odd(self, integers: Value, whole: Value) -> Value:
        """float32 lanes: 2 * integers + 1 eighths of `whole`."""
        kind = lanes(FLOAT, integers.type.count)
        floats = self.builder.sitofp(integers, kind)
        doubled = self.writer.muladd(
            floats, self.writer.number(kind, 2.0), self.writer.number(kind, 1.0)
        )
        scaled = self.builder.fmul(self.writer.pick(whole, [0] * kind.count), doubled)
        return self.builder.fmul(scaled, self.writer.number(kind, 1 / TERNARY_STEPS))


class _Iq1S(_Iq1):
    """IQ1_S: a scale, 32 low bytes of indices; of each 32 numbers high bits, a scale, a shift."""

    @cached_property
    def scales(self) -> Value:
        packed = self.writer.load(lanes(I16, _CHUNKS), self.address, 34)
        return self._odd(
            self._bits(self.builder.zext(packed, lanes(I32, 8)), 12, 3), self.half_at(0)
        )

    def _indices(self, chunk: int) -> list[Value]:
        high = self._at(I16, 34 + 2 * chunk)
        return [
            self._with_high(self._at(I8, 2 + 4 * chunk + run), self._bits(high, 3 * run, 3), 8)
            for run in range(4)
        ]

    def _shifts(self, chunk: int) -> list[Value]:
        high = self.writer.load(I16, self.address, 34 + 2 * chunk)
        return [self.builder.trunc(self._bits(high, 15, 1), I8)] * 4


class _Iq1M(_Iq1):
    """IQ1_M: 32 low bytes of indices, 16 of high bits and shifts, 16 scales of three bits in four
    words, whose highest bits are the scales' own.
    """

    scale_len = 16

    @cached_property
    def scales(self) -> Value:
        words = [self.writer.load(I16, self.address, 48 + 2 * word) for word in range(4)]
        whole = self._bits(words[0], 12, 4)
        for place, word in enumerate(words[1:], 1):
            whole = self._with_high(whole, self._bits(word, 12, 4), 4 * place)
        fields = [self._bits(word, 3 * place, 3) for word in words for place in range(4)]
        integers = self.writer.joined([self.writer.single(field) for field in fields])
        integers = self.builder.zext(integers, lanes(I32, 16))
        return self._odd(integers, self.writer.halves(self.writer.single(whole)))

    def _indices(self, chunk: int) -> list[Value]:
        high = self._at(I16, 32 + 2 * chunk)
        return [
            self._with_high(self._at(I8, 4 * chunk + run), self._bits(high, 4 * run, 3), 8)
            for run in range(4)
        ]

    def _shifts(self, chunk: int) -> list[Value]:
        high = self.writer.load(I16, self.address, 32 + 2 * chunk)
        return [self.builder.trunc(self._bits(high, 4 * run + 3, 1), I8) for run in range(4)]


class _Ternary(Block):
    """Numbers -1, 0 and 1 with one scale for all."""

    zero = 1
    code_bits = 2
    scale_at: int

    @cached_property
    def scales(self) -> Value:
        return self.writer.pick(self.half_at(self.scale_at), [0] * _CHUNKS)


class _Tq2(_Ternary, QuarterBytes):
    """TQ2_0: 64 bytes, a scale."""

    scale_len = CHUNK_LEN
    scale_at = 64


class _Tq1(_Ternary):
    """TQ1_0: 52 bytes of five or four numbers each, and a scale.

    A byte times a power of three, without what no longer fits, has a number in front.
    """

    scale_at = 52

    def codes(self, chunk: int) -> Value:
        if chunk < 5:
            packed, powers = self.bytes_at(0, 32), [3**chunk] * CHUNK_LEN
        elif chunk < 7:
            packed = self.writer.pick(self.bytes_at(32, 16), [*range(16)] * 2)
            powers = [3 ** (2 * (chunk - 5) + half) for half in range(2) for _ in range(16)]
        else:
            last = self.writer.pick(self.bytes_at(48, 4), [*range(4)] * 4)
            packed = self.writer.concat(self.bytes_at(32, 16), last)
            powers = [81] * 16 + [3**place for place in range(4) for _ in range(4)]
        signed = [power - 256 if power > 127 else power for power in powers]
        product = self.builder.mul(packed, packed.type(signed))
        wide = self.builder.zext(product, lanes(I16, CHUNK_LEN))
        threefold = self.builder.mul(wide, self.writer.number(wide.type, 3))
        high = self.builder.lshr(threefold, self.writer.number(wide.type, 8))
        return self.builder.trunc(high, packed.type)


GRID_KINDS: dict[str, type[Block]] = {
    "IQ2_XXS": _Iq2Xxs,
    "IQ2_XS": _Iq2Xs,
    "IQ2_S": _Iq2S,
    "IQ3_XXS": _Iq3Xxs,
    "IQ3_S": _Iq3S,
    "IQ1_S": _Iq1S,
    "IQ1_M": _Iq1M,
    "TQ1_0": _Tq1,
    "TQ2_0": _Tq2,
}
