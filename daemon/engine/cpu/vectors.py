"""Writes vector code for numba's functions: LLVM instructions over runs of lanes.

numba itself has no vectors, and what the compiler makes of a loop over packed bytes is slow. So the
innermost loops are written lane by lane here, in vectors that any processor can compute; the
instructions of a certain processor are used where numba compiles for one that has them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils
from numba.core.registry import cpu_target

Value = Any
"""A value of LLVM's, of an `ir.Type`."""


class _Bfloat(ir.types._BaseFloatType):
    """bfloat16, which llvmlite has no type for."""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


_Bfloat._create_instance()
FLOAT, HALF, BFLOAT = ir.FloatType(), ir.HalfType(), _Bfloat()
BIT, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))

_MANTISSA_BITS = 23
_ROUNDER = 1.5 * 2.0**_MANTISSA_BITS
_LEAST_POWER = -87.0
_LN_2 = 0.693359375, -2.12194440e-4  # the first part has few bits: its multiples are exact
_SERIES = 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0


def lanes(kind: Any, count: int) -> Any:
    """The type of `count` lanes."""
    return ir.VectorType(kind, count)


def _features(context: Any) -> set[str]:
    """The processor features that numba compiles for; its cache goes by them too."""
    return set(context.codegen().magic_tuple()[2].split(","))


def target() -> str:
    """The processor that numba compiles for: its kind, name and features, as LLVM has them."""
    return " ".join(cpu_target.target_context.codegen().magic_tuple())


def target_has(feature: str) -> bool:
    """Whether the processor that numba compiles for has a feature of LLVM's name."""
    return f"+{feature}" in _features(cpu_target.target_context)


class Writer:
    """Writes into one function; addresses are int64 values."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.builder = builder
        self._features = _features(context)

    def has(self, feature: str) -> bool:
        """Whether the processor has a feature of LLVM's name."""
        return f"+{feature}" in self._features

    def number(self, kind: Any, value: float) -> Value:
        """A constant, in every lane of a vector type."""
        if isinstance(kind, ir.VectorType):
            return ir.Constant(kind, [value] * kind.count)
        return ir.Constant(kind, value)

    def call(self, name: str, result: Any, *arguments: Value) -> Value:
        """Call an intrinsic of LLVM's."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            kinds = [argument.type for argument in arguments]
            function = ir.Function(module, ir.FunctionType(result, kinds), name)
        return self.builder.call(function, arguments)

    def at(self, address: Value, offset: int) -> Value:
        """An address some bytes on."""
        return self.builder.add(address, self.number(I64, offset)) if offset else address

    def step(self, address: Value, index: Value, size_bytes: int) -> Value:
        """An address `index * size_bytes` further."""
        return self.builder.add(address, self.builder.mul(index, self.number(I64, size_bytes)))

    def load(self, kind: Any, address: Value, offset: int = 0, align: int = 1) -> Value:
        """Load the value at an address."""
        pointer = self.builder.inttoptr(self.at(address, offset), kind.as_pointer())
        return self.builder.load(pointer, align=align)

    def store(self, value: Value, address: Value, offset: int = 0, align: int = 1) -> None:
        """Put a value to an address."""
        pointer = self.builder.inttoptr(self.at(address, offset), value.type.as_pointer())
        self.builder.store(value, pointer, align=align)

    def prefetch(self, address: Value) -> None:
        """Prefetch the memory at an address."""
        pointer = self.builder.inttoptr(address, I8.as_pointer())
        flags = (self.number(I32, flag) for flag in (0, 2, 1))
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, *flags)

    def pick(self, vector: Value, indices: Sequence[int], other: Value = None) -> Value:
        """The lanes of these indices, of a vector or of two behind each other."""
        mask = ir.Constant(lanes(I32, len(indices)), list(indices))
        other = ir.Constant(vector.type, ir.Undefined) if other is None else other
        return self.builder.shuffle_vector(vector, other, mask)

    def part(self, vector: Value, first: int, count: int) -> Value:
        """Some neighbouring lanes."""
        return self.pick(vector, range(first, first + count))

    def concat(self, low: Value, high: Value) -> Value:
        """The lanes of two vectors of one type behind each other."""
        return self.pick(low, range(2 * low.type.count), high)

    def joined(self, parts: Sequence[Value]) -> Value:
        """The lanes of one, two, four or more vectors of one type behind each other."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.concat(low, high) for low, high in pairs]
        return parts[0]

    def looked_up(self, table: Sequence[int], indices: Value) -> Value:
        """<32 x i8>: what a table of 16 bytes has at indices below 16."""
        kind = indices.type
        if self.has("avx2"):
            both = ir.Constant(kind, [*table, *table])
            return self.call("llvm.x86.avx2.pshuf.b", kind, both, indices)
        found = self.number(kind, table[0])
        for index, value in enumerate(table[1:], 1):
            here = self.builder.icmp_unsigned("==", indices, self.number(kind, index))
            found = self.builder.select(here, self.number(kind, value), found)
        return found

    def table(self, name: str, data: bytes) -> Value:
        """The address of some constant bytes, the same for one name wherever they are asked for."""
        module = self.builder.module
        place = module.globals.get(name)
        if place is None:
            constant = ir.Constant(ir.ArrayType(I8, len(data)), bytearray(data))
            place = ir.GlobalVariable(module, constant.type, name)
            place.linkage, place.global_constant, place.align = "internal", True, 64
            place.initializer = constant
        return self.builder.ptrtoint(place, I64)

    def lane(self, vector: Value, index: int) -> Value:
        """One lane as a scalar."""
        return self.builder.extract_element(vector, self.number(I32, index))

    def splat(self, scalar: Value, count: int) -> Value:
        """A scalar in `count` lanes."""
        empty = ir.Constant(lanes(scalar.type, count), ir.Undefined)
        first = self.builder.insert_element(empty, scalar, self.number(I32, 0))
        return self.pick(first, [0] * count)

    def single(self, scalar: Value) -> Value:
        """A scalar as a vector of one lane."""
        empty = ir.Constant(lanes(scalar.type, 1), ir.Undefined)
        return self.builder.insert_element(empty, scalar, self.number(I32, 0))

    def muladd(self, factor: Value, other: Value, added: Value) -> Value:
        """factor * other + added, rounded once where the processor can."""
        count = f"v{factor.type.count}" if isinstance(factor.type, ir.VectorType) else ""
        return self.call(f"llvm.fmuladd.{count}f32", factor.type, factor, other, added)

    def total(self, vector: Value) -> Value:
        """The sum of float lanes, halves added to halves."""
        while vector.type.count > 1:
            half = vector.type.count // 2
            vector = self.builder.fadd(self.part(vector, 0, half), self.part(vector, half, half))
        return self.lane(vector, 0)

    def largest(self, vector: Value) -> Value:
        """The largest of float lanes that are numbers."""
        while vector.type.count > 1:
            half = vector.type.count // 2
            low, high = (self.part(vector, first, half) for first in (0, half))
            vector = self.builder.select(self.builder.fcmp_ordered(">", low, high), low, high)
        return self.lane(vector, 0)

    def exp(self, powers: Value) -> Value:
        """e ** x of float lanes up to 88, to the last bit or two; what is no number stays so.

        x = k ln 2 + r, |r| <= ln 2 / 2: 2 ** k is an exponent, and e ** r a short series. For
        functions that are compiled without reassociation alone, which would undo the rounding.
        """
        builder, kind = self.builder, powers.type
        bits = lanes(I32, kind.count)
        least = self.number(kind, _LEAST_POWER)
        powers = builder.select(builder.fcmp_ordered("<", powers, least), least, powers)
        # Near this number a float32 has its integer part in the lowest bits.
        rounder = self.number(kind, _ROUNDER)
        shifted = self.muladd(powers, self.number(kind, math.log2(math.e)), rounder)
        whole = builder.fsub(shifted, rounder)
        rest = powers
        for part in _LN_2:
            rest = self.muladd(whole, self.number(kind, -part), rest)
        series = self.number(kind, _SERIES[0])
        for factor in _SERIES[1:]:
            series = self.muladd(series, rest, self.number(kind, factor))
        exponents = builder.shl(builder.bitcast(shifted, bits), self.number(bits, _MANTISSA_BITS))
        unit = builder.bitcast(self.number(kind, 1.0), bits)
        return builder.fmul(series, builder.bitcast(builder.add(exponents, unit), kind))

    def totals(self, vectors: Sequence[Value]) -> Value:
        """The sum of each of one, two, four or more float vectors, in a lane each; as `total`."""
        if vectors[0].type.count < len(vectors):
            return self.joined([self.single(self.total(vector)) for vector in vectors])
        groups = 1
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self._folded(low, high, groups) for low, high in pairs]
            groups *= 2
        (vector,) = vectors
        while vector.type.count > groups:
            vector = self._folded(vector, None, groups)
        return vector

    def _folded(self, vector: Value, other: Value | None, groups: int) -> Value:
        """Half of each run of lanes: its lower part plus its upper one."""
        count = vector.type.count
        half = count // groups // 2
        lower = [
            lane for lane in range(count * (1 if other is None else 2)) if lane // half % 2 == 0
        ]
        upper = [lane + half for lane in lower]
        return self.builder.fadd(self.pick(vector, lower, other), self.pick(vector, upper, other))

    def transposed(self, rows: Sequence[Value]) -> list[Value]:
        """Columns of as many rows as they have lanes, two, four or more."""
        found, count = list(rows), len(rows)
        distance = 1
        while distance < count:
            lower = [lane + (count - distance) * (lane // distance % 2) for lane in range(count)]
            upper = [lane + distance for lane in lower]
            for row in range(count):
                if row // distance % 2 == 0:
                    above, below = found[row], found[row + distance]
                    found[row] = self.pick(above, lower, below)
                    found[row + distance] = self.pick(above, upper, below)
            distance *= 2
        return found

    def variable(self, value: Value) -> Any:
        """A place for values of one type, holding the first."""
        place = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, place)
        return place

    def add_to(self, place: Any, factor: Value, other: Value) -> None:
        """Add factor * other to a variable."""
        self.builder.store(self.muladd(factor, other, self.builder.load(place)), place)

    @contextmanager
    def loop(self, count: Value) -> Iterator[Value]:
        """Code that runs `count` times; gives its int64 index."""
        with cgutils.for_range(self.builder, count, intp=I64) as turn:
            yield turn.index

    def halves(self, bits: Value) -> Value:
        """Lanes of float32 of the float16 in int16 lanes."""
        if self.has("f16c") or not self._features & {"+sse2", "+64bit"}:
            half = self.builder.bitcast(bits, lanes(HALF, bits.type.count))
            return self.builder.fpext(half, lanes(FLOAT, bits.type.count))
        wide = lanes(I32, bits.type.count)
        whole = self.builder.sext(bits, wide)
        size = self.builder.and_(
            self.builder.shl(whole, self.number(wide, 13)), self.number(wide, 0x0FFFE000)
        )
        sign = self.builder.and_(whole, self.number(wide, -0x80000000))
        size = self.builder.bitcast(size, lanes(FLOAT, bits.type.count))
        # The exponent counts from 15 less than float32's: also right of the smallest numbers.
        size = self.builder.fmul(size, self.number(size.type, 2.0**112))
        joined = self.builder.or_(self.builder.bitcast(size, wide), sign)
        return self.builder.bitcast(joined, size.type)
