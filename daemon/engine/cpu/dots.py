"""The innermost loops over rows of blocks in float32, as vector code for numba's functions.

Each takes the number of a format (`number_of`), which is a constant where it is compiled, and
addresses. `daemon.engine.cpu.quantised_kernels` makes items of them.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.blocks import CHUNK_LEN, Block
from daemon.engine.cpu.vectors import BFLOAT, FLOAT, I16, I32, I64, Value, Writer, lanes
from daemon.models.formats import FORMATS, WeightFormat

FLOAT32, BFLOAT16 = range(2)
"""Types that numbers are unpacked to."""

TILE = 4
"""Columns, and tokens, of one tile of a product."""

_LANES = 16
_FEW_LANES = 8
_VECTOR = lanes(FLOAT, _LANES)
_VECTOR_BYTES = 64
_LINE_BYTES = 64


def number_of(name: str) -> int:
    """A format's number: the letters of its name, so that what is compiled holds for no other."""
    return int.from_bytes(name.encode(), "big")


def form_of(constant: Any) -> WeightFormat:
    """The format of a constant in numba's code."""
    letters = constant.literal_value.to_bytes(8, "big")
    return FORMATS[letters.lstrip(b"\0").decode()]


@intrinsic(prefer_literal=True)
def stack(_typing: Any, size_bytes: Any) -> Any:
    """The address of `size_bytes` bytes that last as long as the function. For numba code."""
    count = size_bytes.literal_value

    def generate(_context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        with builder.goto_entry_block():
            place = builder.alloca(ir.ArrayType(ir.IntType(8), count))
        place.align = 64
        return builder.ptrtoint(place, I64)

    return types.int64(size_bytes), generate


def fetch_lines(writer: Writer, address: Value, size_bytes: int) -> None:
    """Prefetch some bytes."""
    for offset in range(0, size_bytes, _LINE_BYTES):
        writer.prefetch(writer.at(address, offset))


@intrinsic(prefer_literal=True)
def dot_floats(
    _typing: Any, form: Any, rows: Any, row_bytes: Any, num_blocks: Any, states: Any, sums: Any
) -> Any:
    """float32 [TILE] at `sums`: products of one token's states and `TILE` rows. For numba code.

    `rows` is the address of as many addresses (int64); the rows `TILE` further are fetched.
    """
    form_here = form_of(form)
    kind = reader(form_here)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, places, ahead, count, states_at, sums_at = values
        rows_at = [writer.load(I64, places, 8 * column) for column in range(TILE)]
        zero = writer.number(_VECTOR, 0.0)
        # A sum for each half of a chunk, where the processor's registers hold as many.
        sums = 2 if writer.has("avx512f") else 1
        totals = [[writer.variable(zero) for _ in range(sums)] for _ in range(TILE)]
        size_bytes, length = kind.size_bytes(form_here), kind.length(form_here)
        with writer.loop(count) as index:
            at = writer.step(states_at, index, 4 * length)
            here = [writer.step(row, index, size_bytes) for row in rows_at]
            blocks = [kind(writer, form_here, address) for address in here]
            for address in here:
                fetch_lines(writer, builder.add(address, ahead), size_bytes)
            for chunk in range(length // CHUNK_LEN):
                offsets = (4 * CHUNK_LEN * chunk + _VECTOR_BYTES * half for half in range(2))
                numbers = [writer.load(_VECTOR, at, offset) for offset in offsets]
                for column, block in enumerate(blocks):
                    for half, part in enumerate(block.floats(chunk)):
                        writer.add_to(totals[column][half % sums], part, numbers[half])
        whole = []
        for places in totals:
            loaded = [builder.load(place) for place in places]
            whole.append(builder.fadd(*loaded) if sums > 1 else loaded[0])
        writer.store(writer.totals(whole), sums_at)
        return context.get_dummy_value()

    integers = (types.int64,) * 5
    return types.void(form, *integers), generate


def narrowed(writer: Writer, numbers: Value) -> Value:
    """Bits of bfloat16 of float lanes, to the nearest, of two as near the even one."""
    builder = writer.builder
    if writer.has("avx512bf16"):
        return builder.fptrunc(numbers, lanes(BFLOAT, numbers.type.count))
    wide = lanes(I32, numbers.type.count)
    bits = builder.bitcast(numbers, wide)
    last = builder.and_(builder.lshr(bits, writer.number(wide, 16)), writer.number(wide, 1))
    up = builder.add(last, writer.number(wide, 0x7FFF))
    high = builder.lshr(builder.add(bits, up), writer.number(wide, 16))
    whole = builder.trunc(high, lanes(I16, numbers.type.count))
    missing = builder.fcmp_unordered("uno", numbers, numbers)
    return builder.select(missing, writer.number(whole.type, 0x7FC0), whole)


@intrinsic(prefer_literal=True)
def unpack_row(
    _typing: Any, form: Any, target: Any, blocks: Any, num_blocks: Any, ahead: Any, output: Any
) -> Any:
    """Numbers of some blocks of a row, in the type that `target` says. For numba code.

    The bytes that lie `ahead` of them are fetched.
    """
    form_here, narrow = form_of(form), target.literal_value == BFLOAT16
    kind = reader(form_here)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, _, blocks_at, count, ahead, output_at = values
        size_bytes, length = kind.size_bytes(form_here), kind.length(form_here)
        number_bytes = 2 if narrow else 4
        with writer.loop(count) as index:
            here = writer.step(blocks_at, index, size_bytes)
            block: Block = kind(writer, form_here, here)
            fetch_lines(writer, builder.add(here, ahead), size_bytes)
            at = writer.step(output_at, index, number_bytes * length)
            for chunk in range(length // CHUNK_LEN):
                for half, part in enumerate(block.floats(chunk)):
                    offset = number_bytes * (CHUNK_LEN * chunk + _LANES * half)
                    writer.store(narrowed(writer, part) if narrow else part, at, offset)
        return context.get_dummy_value()

    integers = (types.int64,) * 4
    return types.void(form, target, *integers), generate


@intrinsic
def tile_floats(_typing: Any, rows: Any, row_len: Any, states: Any, count: Any, sums: Any) -> Any:
    """float32 [TILE, TILE] at `sums` (tokens, columns): products of rows of float32.

    `count` numbers of each are multiplied, a multiple of 32; rows lie `row_len` numbers apart,
    `states` is the address of as many addresses (int64). For numba code.
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        rows_at, row_len, places, count, sums_at = values
        columns = [writer.number(I64, 4 * column) for column in range(TILE)]
        rows = [builder.add(rows_at, builder.mul(row_len, column)) for column in columns]
        tokens = [writer.load(I64, places, 8 * token) for token in range(TILE)]
        # All sums in registers: sixteen of 64 bytes, or eight of 32.
        wide = writer.has("avx512f")
        together, num_lanes = (TILE, _LANES) if wide else (TILE // 2, _FEW_LANES)
        for first in range(0, TILE, together):
            at = writer.at(sums_at, 4 * TILE * first)
            _tile(writer, rows, tokens[first : first + together], count, num_lanes, at)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 5), generate


def _tile(
    writer: Writer, rows: list[Value], tokens: list[Value], count: Value, num_lanes: int, at: Value
) -> None:
    """float32 [tokens, TILE] at an address: products of tokens' states and rows of numbers."""
    builder, vector = writer.builder, lanes(FLOAT, num_lanes)
    zero = writer.number(vector, 0.0)
    totals = [[writer.variable(zero) for _ in rows] for _ in tokens]
    with writer.loop(builder.udiv(count, writer.number(I64, num_lanes))) as index:
        shift = builder.mul(index, writer.number(I64, 4 * num_lanes))
        weights = [writer.load(vector, builder.add(row, shift)) for row in rows]
        for token, row in enumerate(tokens):
            numbers = writer.load(vector, builder.add(row, shift))
            for column, weight in enumerate(weights):
                writer.add_to(totals[token][column], numbers, weight)
    for token, places in enumerate(totals):
        sums = writer.totals([builder.load(place) for place in places])
        writer.store(sums, at, 4 * TILE * token)
