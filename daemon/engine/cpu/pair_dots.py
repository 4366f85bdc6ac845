"""The innermost loops over rows of bfloat16 in float32, as vector code for numba's functions.

A lane of 32 bits holds two neighbours. The lower one shifted up and the upper one as it lies are
float32 numbers, so that numbers of even and of odd index are read without being brought into order:
states are put into theirs once, for all rows.
"""

from typing import Any

from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.dots import TILE
from daemon.engine.cpu.vectors import FLOAT, I32, I64, Value, Writer, lanes

_UPPER_BITS = -0x10000


def _num_lanes(writer: Writer) -> int:
    """Pairs that are multiplied together."""
    return 16 if writer.has("avx512f") else 8


@intrinsic
def split_row(_typing: Any, numbers: Any, count: Any, output: Any) -> Any:
    """Puts float32 numbers into the order of `tile_pairs`, a multiple of 32. For numba code."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        numbers_at, count, output_at = values
        num_lanes = _num_lanes(writer)
        vector, size_bytes = lanes(FLOAT, num_lanes), 4 * num_lanes
        with writer.loop(builder.udiv(count, writer.number(I64, 2 * num_lanes))) as index:
            here = writer.step(numbers_at, index, 2 * size_bytes)
            there = writer.step(output_at, index, 2 * size_bytes)
            halves = [writer.load(vector, here, size_bytes * half) for half in range(2)]
            for odd in range(2):
                part = writer.pick(halves[0], range(odd, 2 * num_lanes, 2), halves[1])
                writer.store(part, there, size_bytes * odd)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 3), generate


@intrinsic(prefer_literal=True)
def tile_pairs(
    _typing: Any, num_tokens: Any, rows: Any, ahead: Any, states: Any, count: Any, sums: Any
) -> Any:
    """float32 [num_tokens, TILE] at `sums`: products of `TILE` rows of bfloat16.

    `rows` and `states` (float32, see `split_row`) are addresses of addresses (int64), `count`
    numbers of each are multiplied, a multiple of 32; the bytes that lie `ahead` of the rows are
    fetched. For numba code.
    """
    tokens_here = num_tokens.literal_value

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, rows_at, ahead, states_at, count, sums_at = values
        rows = [writer.load(I64, rows_at, 8 * row) for row in range(TILE)]
        tokens = [writer.load(I64, states_at, 8 * token) for token in range(tokens_here)]
        # All sums in registers: sixteen of 64 bytes, or eight of 32.
        together = TILE if writer.has("avx512f") else TILE // 2
        for first in range(0, tokens_here, together):
            at = writer.at(sums_at, 4 * TILE * first)
            _tile(writer, rows, tokens[first : first + together], count, ahead, at)
        return context.get_dummy_value()

    return types.void(num_tokens, *(types.int64,) * 5), generate


def _tile(
    writer: Writer, rows: list[Value], tokens: list[Value], count: Value, ahead: Value, at: Value
) -> None:
    """float32 [tokens, TILE] at an address."""
    builder, num_lanes = writer.builder, _num_lanes(writer)
    vector, size_bytes = lanes(FLOAT, num_lanes), 4 * num_lanes
    zero = writer.number(vector, 0.0)
    totals = [[writer.variable(zero) for _ in rows] for _ in tokens]
    with writer.loop(builder.udiv(count, writer.number(I64, 2 * num_lanes))) as index:
        weights = []
        for row in rows:
            here = writer.step(row, index, size_bytes)
            writer.prefetch(builder.add(here, ahead))
            weights.append(_numbers(writer, writer.load(lanes(I32, num_lanes), here)))
        for of_token, token in zip(totals, tokens, strict=True):
            here = writer.step(token, index, 2 * size_bytes)
            for odd in range(2):
                numbers = writer.load(vector, here, size_bytes * odd)
                for total, weight in zip(of_token, weights, strict=True):
                    writer.add_to(total, weight[odd], numbers)
    for token, of_token in enumerate(totals):
        sums = writer.totals([builder.load(total) for total in of_token])
        writer.store(sums, at, 4 * TILE * token)


def _numbers(writer: Writer, pairs: Value) -> list[Value]:
    """float32 lanes of pairs of bfloat16: the lower ones, and the upper ones."""
    builder = writer.builder
    lower = builder.shl(pairs, writer.number(pairs.type, 16))
    upper = builder.and_(pairs, writer.number(pairs.type, _UPPER_BITS))
    return [builder.bitcast(bits, lanes(FLOAT, pairs.type.count)) for bits in (lower, upper)]
