"""One block of a quantised weight as vectors of float32: compiled code, written in LLVM terms.

A block's numbers come sixteen at a time, in their order, each computed as
`daemon.engine.quantised.unpack` says, bit for bit; a compiler that is given loops over bytes finds
no vectors in them. LLVM cuts sixteen into what the processor has.
"""

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from daemon.models.formats import FORMATS, Format

LANES = 16
_BYTE, _INT, _FLOAT = ir.IntType(8), ir.IntType(32), ir.FloatType()
_BYTES, _FLOATS = ir.VectorType(_BYTE, LANES), ir.VectorType(_FLOAT, LANES)
_BITS = ir.VectorType(ir.IntType(1), LANES)

Value = Any
"""A value of LLVM's, as llvmlite has it: it has no types."""


class Block:
    """Writes the code that reads a block at an address (int64)."""

    def __init__(self, builder: Any, address: Value) -> None:
        self.builder = builder
        self._address = address

    def load(self, kind: Any, offset: int) -> Value:
        """What lies so many bytes into the block."""
        place = self.builder.add(self._address, ir.Constant(self._address.type, offset))
        loaded = self.builder.load(self.builder.inttoptr(place, kind.as_pointer()))
        loaded.align = 1
        return loaded

    def half(self, offset: int) -> Value:
        """A float16, as float32."""
        return self.builder.fpext(self.load(ir.HalfType(), offset), _FLOAT)

    def bytes(self, offset: int) -> Value:
        """Sixteen bytes."""
        return self.load(_BYTES, offset)

    def low(self, packed: Value) -> Value:
        """The low halves of sixteen bytes."""
        return self.builder.and_(packed, _splat_byte(15))

    def high(self, packed: Value) -> Value:
        """The high halves of sixteen bytes."""
        return self.builder.lshr(packed, _splat_byte(4))

    def bit(self, packed: Value, shift: int, width: int) -> Value:
        """`width` bits of sixteen bytes, from bit `shift` on, as bits 4 and up."""
        moved = self.builder.lshr(packed, _splat_byte(shift))
        kept = self.builder.and_(moved, _splat_byte((1 << width) - 1))
        return self.builder.shl(kept, _splat_byte(4))

    def fifth(self, offset: int) -> Value:
        """Sixteen bits that lie next to each other, as bit 4 of sixteen bytes."""
        bits = self.builder.bitcast(self.load(ir.IntType(16), offset), _BITS)
        return self.builder.shl(self.builder.zext(bits, _BYTES), _splat_byte(4))

    def either(self, one: Value, other: Value) -> Value:
        """The bits of both."""
        return self.builder.or_(one, other)

    def unsigned(self, numbers: Value) -> Value:
        """Bytes 0..255 as floats."""
        return self.builder.uitofp(numbers, _FLOATS)

    def signed(self, numbers: Value) -> Value:
        """Bytes -128..127 as floats."""
        return self.builder.sitofp(numbers, _FLOATS)

    def less(self, numbers: Value, amount: int) -> Value:
        """Bytes less a number, as floats."""
        return self.signed(self.builder.sub(numbers, _splat_byte(amount)))

    def times(self, scale: Value, numbers: Value) -> Value:
        """Floats times one float."""
        return self.builder.fmul(self.splat(scale), numbers)

    def plus(self, numbers: Value, least: Value) -> Value:
        """Floats plus one float."""
        return self.builder.fadd(numbers, self.splat(least))

    def minus(self, numbers: Value, least: Value) -> Value:
        """Floats less one float."""
        return self.builder.fsub(numbers, self.splat(least))

    def splat(self, scalar: Value) -> Value:
        """One float in every lane."""
        zero = ir.Constant(_INT, 0)
        first = self.builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), scalar, zero)
        lanes = ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, ir.Constant(_FLOATS, ir.Undefined), lanes)

    def lanes(self, vector: Value, count: int) -> list[Value]:
        """The single values of a short vector."""
        return [self.builder.extract_element(vector, ir.Constant(_INT, i)) for i in range(count)]


def _splat_byte(number: int) -> Value:
    return ir.Constant(_BYTES, [number] * LANES)


def vectors(form: Format, builder: Any, address: Value) -> list[Value]:
    """A block's numbers, sixteen floats each; of a format of single numbers sixteen of them."""
    block = Block(builder, address)
    kind, _, size = form.name.partition("/")
    if size:
        return list(_group(block, kind, int(size)))
    return list(_OF_GGUF[kind](block))


def block_len(form: Format) -> int:
    """Numbers that `vectors` reads at once."""
    return max(form.block_len, LANES)


def block_bytes(form: Format) -> int:
    """Bytes that `vectors` reads at once."""
    return form.block_bytes * (block_len(form) // form.block_len)


def _f32(block: Block) -> Iterator[Value]:
    yield block.load(_FLOATS, 0)


def _f16(block: Block) -> Iterator[Value]:
    yield block.builder.fpext(block.load(ir.VectorType(ir.HalfType(), LANES), 0), _FLOATS)


def _bf16(block: Block) -> Iterator[Value]:
    shorts = block.load(ir.VectorType(ir.IntType(16), LANES), 0)
    wide = ir.VectorType(_INT, LANES)
    bits = block.builder.shl(block.builder.zext(shorts, wide), ir.Constant(wide, [16] * LANES))
    yield block.builder.bitcast(bits, _FLOATS)


def _q4_0(block: Block) -> Iterator[Value]:
    scale, packed = block.half(0), block.bytes(2)
    for numbers in (block.low(packed), block.high(packed)):
        yield block.times(scale, block.less(numbers, 8))


def _q4_1(block: Block) -> Iterator[Value]:
    scale, least, packed = block.half(0), block.half(2), block.bytes(4)
    for numbers in (block.low(packed), block.high(packed)):
        yield block.plus(block.times(scale, block.unsigned(numbers)), least)


def _q5_0(block: Block) -> Iterator[Value]:
    scale, packed = block.half(0), block.bytes(6)
    for numbers, at in ((block.low(packed), 2), (block.high(packed), 4)):
        yield block.times(scale, block.less(block.either(numbers, block.fifth(at)), 16))


def _q5_1(block: Block) -> Iterator[Value]:
    scale, least, packed = block.half(0), block.half(2), block.bytes(8)
    for numbers, at in ((block.low(packed), 4), (block.high(packed), 6)):
        whole = block.unsigned(block.either(numbers, block.fifth(at)))
        yield block.plus(block.times(scale, whole), least)


def _q8_0(block: Block) -> Iterator[Value]:
    scale = block.half(0)
    for at in (2, 18):
        yield block.times(scale, block.signed(block.bytes(at)))


def _k_scales(block: Block) -> list[tuple[Value, Value]]:
    """The scale and minimum of each of eight groups of 32, as Q4_K and Q5_K pack them."""
    builder, four = block.builder, ir.VectorType(_BYTE, 4)
    low, high, mixed = (block.load(four, at) for at in (4, 8, 12))

    def all_of(number: int) -> Value:
        return ir.Constant(four, [number] * 4)

    def top(packed: Value) -> Value:
        return builder.and_(builder.lshr(packed, all_of(2)), all_of(48))

    scales = (
        builder.and_(low, all_of(63)),
        builder.or_(builder.and_(mixed, all_of(15)), top(low)),
    )
    minima = (
        builder.and_(high, all_of(63)),
        builder.or_(builder.lshr(mixed, all_of(4)), top(high)),
    )
    found = []
    for kind, whole in ((scales, block.half(0)), (minima, block.half(2))):
        floats = [builder.uitofp(part, ir.VectorType(_FLOAT, 4)) for part in kind]
        lanes = [lane for part in floats for lane in block.lanes(part, 4)]
        found.append([builder.fmul(whole, lane) for lane in lanes])
    return list(zip(*found, strict=True))


def _q4_k(block: Block) -> Iterator[Value]:
    scales = _k_scales(block)
    for chunk in range(4):
        halves = [block.bytes(16 + 32 * chunk + at) for at in (0, 16)]
        for take, (scale, least) in zip(
            (block.low, block.high), scales[2 * chunk : 2 * chunk + 2], strict=True
        ):
            for packed in halves:
                yield block.minus(block.times(scale, block.unsigned(take(packed))), least)


def _q5_k(block: Block) -> Iterator[Value]:
    scales, high = _k_scales(block), [block.bytes(16 + at) for at in (0, 16)]
    for group, (scale, least) in enumerate(scales):
        take = block.high if group % 2 else block.low
        for at in (0, 1):
            packed = take(block.bytes(48 + 32 * (group // 2) + 16 * at))
            whole = block.unsigned(block.either(packed, block.bit(high[at], group, 1)))
            yield block.minus(block.times(scale, whole), least)


def _q6_k(block: Block) -> Iterator[Value]:
    scale = block.half(208)
    scales = block.builder.fmul(block.splat(scale), block.signed(block.bytes(192)))
    lanes = block.lanes(scales, LANES)
    for half in (0, 1):
        for row in range(4):
            take = block.high if row > 1 else block.low
            for at in (0, 1):
                low = take(block.bytes(64 * half + 32 * (row % 2) + 16 * at))
                high = block.bit(block.bytes(128 + 32 * half + 16 * at), 2 * row, 2)
                numbers = block.less(block.either(low, high), 32)
                yield block.times(lanes[8 * half + 2 * row + at], numbers)


def _group(block: Block, kind: str, size: int) -> Iterator[Value]:
    scale, zero = block.load(_FLOAT, 0), block.load(_FLOAT, 4)
    for numbers in _OF_GROUPS[kind](block, size):
        yield block.times(scale, block.minus(numbers, zero))


def _int4(block: Block, size: int) -> Iterator[Value]:
    for take in (block.low, block.high):
        for at in range(8, 8 + size // 2, LANES):
            yield block.unsigned(take(block.bytes(at)))


def _int8(block: Block, size: int) -> Iterator[Value]:
    for at in range(8, 8 + size, LANES):
        yield block.unsigned(block.bytes(at))


def _fp8(block: Block, size: int) -> Iterator[Value]:
    """e4m3: its bits are those of a float16 whose exponent is 8 less, but for NaN."""
    builder, shorts = block.builder, ir.VectorType(ir.IntType(16), LANES)

    def all_of(number: int) -> Value:
        return ir.Constant(shorts, [number] * LANES)

    for at in range(8, 8 + size, LANES):
        wide = builder.zext(block.bytes(at), shorts)
        sign = builder.shl(builder.and_(wide, all_of(128)), all_of(8))
        rest = builder.shl(builder.and_(wide, all_of(127)), all_of(7))
        halves = builder.bitcast(builder.or_(sign, rest), ir.VectorType(ir.HalfType(), LANES))
        floats = builder.fpext(halves, _FLOATS)
        larger = builder.fmul(floats, ir.Constant(_FLOATS, [256.0] * LANES))
        is_nan = builder.icmp_unsigned("==", builder.and_(wide, all_of(127)), all_of(127))
        yield builder.select(is_nan, ir.Constant(_FLOATS, [float("nan")] * LANES), larger)


_OF_GGUF: dict[str, Callable[[Block], Iterator[Value]]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
_OF_GROUPS = {"int4": _int4, "int8": _int8, "fp8": _fp8}
CODES = {name: code for code, name in enumerate(FORMATS)}
"""Numbers that calls name formats by."""
