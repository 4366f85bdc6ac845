"""The innermost loops over states that are rounded to 8 bits, as vector code for numba's functions.

Of every 32 neighbouring numbers of a token, the largest magnitude m gives the scale m / 127, and
each number x becomes the integer nearest to x * (127 / m), of two as near the even one; all in
float32. Where m is below `LEAST` scale and integers are 0. The sum of every 16 integers, times the
scale, stands for what zeros and minima of weights are multiplied with.

A record of L tokens (1, 8, 16 or 32) of K numbers holds codes int8 [K / 4, L, 4], then scales
float32 [K / 32, L], then sums float32 [K / 16, L]: for L > 1 the lanes of a vector are tokens.
"""

from typing import Any

from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.blocks import CHUNK_LEN, HALF_CHUNK, Block, Factors
from daemon.engine.cpu.dots import TILE, fetch_lines, form_of
from daemon.engine.cpu.vectors import BIT, FLOAT, I8, I16, I32, I64, Value, Writer, lanes

LEAST = 2.0**-100
"""Smaller numbers are rounded to nothing."""

_MOST = 127.0
_ROUNDER = 12582912.0  # 1.5 * 2 ** 23: a float32 near it has its integer in the lowest bits
_ROUNDER_BITS = 0x4B400000
_FEW_LANES = 8  # 32 bytes, of which four by four are summed


def dot_bytes(writer: Writer, total: Value, factors: Value, signed: Value, kind: Factors) -> Value:
    """`total` <n x i32> plus the sums of each four products of <4n x i8>.

    `signed` are rounded states, of -127 to 127.
    """
    builder, count = writer.builder, total.type.count
    if writer.has("avx512vnni") and count in {8, 16}:
        words = [builder.bitcast(vector, total.type) for vector in (factors, signed)]
        return writer.call(f"llvm.x86.avx512.vpdpbusd.{32 * count}", total.type, total, *words)
    if count > _FEW_LANES:
        halves = []
        for first in (0, count // 2):
            some, others = (
                writer.part(vector, 4 * first, 2 * count) for vector in (factors, signed)
            )
            here = writer.part(total, first, count // 2)
            halves.append(dot_bytes(writer, here, some, others, kind))
        return writer.concat(*halves)
    if writer.has("avxvnni"):
        words = [builder.bitcast(vector, total.type) for vector in (factors, signed)]
        return writer.call("llvm.x86.avx512.vpdpbusd.256", total.type, total, *words)
    if writer.has("avx2"):
        return builder.add(total, _by_pairs(writer, factors, signed, kind))
    return builder.add(total, _plainly(writer, factors, signed))


def _by_pairs(writer: Writer, factors: Value, signed: Value, kind: Factors) -> Value:
    """<8 x i32> by the instruction that adds pairs of products in 16 bits, and saturates there."""
    pairs_kind, sums_kind = lanes(I16, 16), lanes(I32, 8)
    if kind is Factors.SIGNED:
        # It takes one side without a sign: magnitudes, and the sign goes over to the states.
        signed = writer.call("llvm.x86.avx2.psign.b", signed.type, signed, factors)
        never = writer.number(BIT, 0)
        factors = writer.call("llvm.abs.v32i8", factors.type, factors, never)
    pairs = writer.call("llvm.x86.avx2.pmadd.ub.sw", pairs_kind, factors, signed)
    ones = writer.number(pairs_kind, 1)
    return writer.call("llvm.x86.avx2.pmadd.wd", sums_kind, pairs, ones)


def _plainly(writer: Writer, factors: Value, signed: Value) -> Value:
    builder, count = writer.builder, factors.type.count
    wide = lanes(I16, count)
    products = builder.mul(builder.zext(factors, wide), builder.sext(signed, wide))
    products = builder.sext(products, lanes(I32, count))
    parts = [writer.pick(products, range(first, count, 4)) for first in range(4)]
    return builder.add(builder.add(*parts[:2]), builder.add(*parts[2:]))


@intrinsic
def round_chunk(
    _typing: Any, numbers: Any, codes: Any, scale: Any, sums: Any, num_lanes: Any
) -> Any:
    """Round 32 float32 numbers of one token into its lane of a record. For numba code.

    All are addresses, of the first number, four codes, scale and sum; the rest lies `num_lanes`
    times four bytes further each.
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        numbers_at, codes_at, scale_at, sums_at, count = values
        step_bytes = builder.mul(count, writer.number(I64, 4))
        kind, wide = lanes(FLOAT, HALF_CHUNK), lanes(I32, HALF_CHUNK)
        halves = [writer.load(kind, numbers_at, 64 * half) for half in range(2)]
        scale, inverse = _scale(writer, halves)
        writer.store(scale, scale_at)
        packed = []
        for half, part in enumerate(halves):
            scaled = builder.fmul(part, writer.splat(inverse, HALF_CHUNK))
            rounded = builder.fadd(scaled, writer.number(kind, _ROUNDER))
            bits = builder.bitcast(rounded, wide)
            integers = builder.sub(bits, writer.number(wide, _ROUNDER_BITS))
            total = writer.call("llvm.vector.reduce.add.v16i32", I32, integers)
            total = builder.fmul(builder.sitofp(total, FLOAT), scale)
            writer.store(total, builder.add(sums_at, step_bytes) if half else sums_at)
            packed.append(builder.trunc(integers, lanes(I8, HALF_CHUNK)))
        words = builder.bitcast(writer.concat(*packed), lanes(I32, CHUNK_LEN // 4))
        for index in range(CHUNK_LEN // 4):
            writer.store(writer.lane(words, index), codes_at)
            codes_at = builder.add(codes_at, step_bytes)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 5), generate


def _scale(writer: Writer, halves: list[Value]) -> tuple[Value, Value]:
    """The scale of 32 numbers and what they are multiplied with."""
    builder, wide = writer.builder, lanes(I32, HALF_CHUNK)
    mask = writer.number(wide, 0x7FFFFFFF)
    # As integers, for there a number that is missing is the largest: it must not vanish.
    sizes = [builder.and_(builder.bitcast(part, wide), mask) for part in halves]

    def larger(left: Value, right: Value) -> Value:
        return builder.select(builder.icmp_unsigned(">", left, right), left, right)

    most = larger(*sizes)
    while most.type.count > 1:
        half = most.type.count // 2
        most = larger(writer.part(most, 0, half), writer.part(most, half, half))
    most = builder.bitcast(writer.lane(most, 0), FLOAT)
    zero, top = writer.number(FLOAT, 0.0), writer.number(FLOAT, _MOST)
    tiny = builder.fcmp_ordered("<", most, writer.number(FLOAT, LEAST))
    inverse = builder.select(tiny, zero, builder.fdiv(top, most))
    return builder.select(tiny, zero, builder.fdiv(most, top)), inverse


@intrinsic(prefer_literal=True)
def unpack_codes(
    _typing: Any, form: Any, blocks: Any, num_blocks: Any, ahead: Any, codes: Any, scales: Any
) -> Any:
    """Factors of some blocks of a row, and of each scale the scale and offset. For numba code.

    Addresses of bytes and of float32 pairs; the bytes that lie `ahead` of the blocks are fetched.
    """
    form_here = form_of(form)
    kind = reader(form_here)
    size_bytes, length = kind.size_bytes(form_here), kind.length(form_here)
    num_scales = length // kind.scale_len

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, blocks_at, count, ahead, codes_at, scales_at = values
        with writer.loop(count) as index:
            here = writer.step(blocks_at, index, size_bytes)
            block: Block = kind(writer, form_here, here)
            fetch_lines(writer, builder.add(here, ahead), size_bytes)
            mixed = [lane // 2 + lane % 2 * num_scales for lane in range(2 * num_scales)]
            both = writer.pick(block.scales, mixed, block.offsets_of_factors)
            writer.store(both, writer.step(scales_at, index, 8 * num_scales))
            at = writer.step(codes_at, index, length)
            for chunk in range(length // CHUNK_LEN):
                writer.store(block.factors(chunk), at, CHUNK_LEN * chunk)
        return context.get_dummy_value()

    return types.void(form, *(types.int64,) * 5), generate


class Record:
    """A record of several tokens of `width` numbers, from its number `start` on."""

    def __init__(
        self, writer: Writer, tokens: int, states: Value, width: Value, start: Value
    ) -> None:
        builder = writer.builder
        self._writer = writer
        self._tokens = tokens
        whole, first = (builder.mul(rows, writer.number(I64, tokens)) for rows in (width, start))
        scales = builder.add(states, whole)
        sums = builder.add(scales, builder.lshr(whole, writer.number(I64, 3)))
        self._codes = builder.add(states, first)
        self._scales = builder.add(scales, builder.lshr(first, writer.number(I64, 3)))
        self._sums = builder.add(sums, builder.lshr(first, writer.number(I64, 2)))

    def codes(self, chunk: Value) -> Value:
        """The address of a chunk's codes."""
        return self._writer.step(self._codes, chunk, CHUNK_LEN * self._tokens)

    def scales(self, chunk: Value) -> Value:
        """A chunk's scales, of every token."""
        vector = lanes(FLOAT, self._tokens)
        return self._writer.load(vector, self._writer.step(self._scales, chunk, 4 * self._tokens))

    def sums(self, chunk: Value, runs: int) -> list[Value]:
        """The sums of a chunk's runs (one or two), of every token."""
        vector, size_bytes = lanes(FLOAT, self._tokens), 4 * self._tokens
        at = self._writer.step(self._sums, chunk, 2 * size_bytes)
        halves = [self._writer.load(vector, at, size_bytes * half) for half in range(2)]
        return halves if runs == 2 else [self._writer.builder.fadd(*halves)]


def add_scaled(
    writer: Writer, total: Value, dots: Value, scale: Value, added: Value, pair: Value
) -> None:
    """Add sums of products of integers, scaled, to a variable.

    `pair` is the address of the weights' scale and offset, `scale` and `added` are the tokens'.
    """
    vector = scale.type
    by, offset = (writer.splat(writer.load(FLOAT, pair, at), vector.count) for at in (0, 4))
    scaled = writer.builder.fmul(writer.builder.sitofp(dots, vector), scale)
    writer.add_to(total, scaled, by)
    writer.add_to(total, added, offset)


@intrinsic(prefer_literal=True)
def tile_codes(
    _typing: Any,
    form: Any,
    num_lanes: Any,
    codes: Any,
    scales: Any,
    row_len: Any,
    states: Any,
    width: Any,
    start: Any,
    count: Any,
    sums: Any,
) -> Any:
    """Adds to float32 [TILE, lanes] at `sums` products of one record and `TILE` rows of codes.

    `codes` and `scales` are those that `unpack_codes` wrote for numbers `start` to start + count of
    the rows, `row_len` numbers apart; `states` is a record of `width` numbers. For numba code.
    """
    tokens, kind = num_lanes.literal_value, reader(form_of(form))
    runs = CHUNK_LEN // kind.scale_len

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, _, codes_at, pairs_at, row_len, states_at, width, start, count, sums_at = values
        vector, integers = lanes(FLOAT, tokens), lanes(I32, tokens)
        factors = kind.kind_of_factors(writer)
        record = Record(writer, tokens, states_at, width, start)
        columns = [builder.mul(row_len, writer.number(I64, index)) for index in range(TILE)]
        rows_at = [builder.add(codes_at, column) for column in columns]
        pairs_at = [
            builder.add(pairs_at, builder.udiv(column, writer.number(I64, kind.scale_len // 8)))
            for column in columns
        ]
        totals = [
            writer.variable(writer.load(vector, sums_at, 4 * tokens * column))
            for column in range(TILE)
        ]
        with writer.loop(builder.udiv(count, writer.number(I64, CHUNK_LEN))) as index:
            codes, scale = record.codes(index), record.scales(index)
            added = record.sums(index, runs)
            rows = [writer.step(row, index, CHUNK_LEN) for row in rows_at]
            pairs = [writer.step(pair, index, 8 * runs) for pair in pairs_at]
            words = CHUNK_LEN // 4 // runs
            for run in range(runs):
                dots = [writer.number(integers, 0)] * TILE
                for word in range(run * words, (run + 1) * words):
                    signed = writer.load(lanes(I8, 4 * tokens), codes, 4 * tokens * word)
                    for column, row in enumerate(rows):
                        four = writer.splat(writer.load(I32, row, 4 * word), tokens)
                        four = builder.bitcast(four, signed.type)
                        dots[column] = dot_bytes(writer, dots[column], four, signed, factors)
                for total, some, pair in zip(totals, dots, pairs, strict=True):
                    add_scaled(writer, total, some, scale, added[run], writer.at(pair, 8 * run))
        for column, total in enumerate(totals):
            writer.store(builder.load(total), sums_at, 4 * tokens * column)
        return context.get_dummy_value()

    return types.void(form, num_lanes, *(types.int64,) * 8), generate
