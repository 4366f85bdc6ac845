"""The CPU kernels of products that round states to 8 bits; see `integer_dots` for how.

Compiled for each format in use, and called by address, as those of `quantised_kernels`.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from functools import cache
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.dots import TILE, number_of, stack
from daemon.engine.cpu.integer_dots import round_chunk, tile_codes, unpack_codes
from daemon.engine.cpu.quantised_kernels import COLUMNS_AT_ONCE, ITEM, place, write
from daemon.engine.cpu.record_dots import dot_codes
from daemon.engine.cpu.team import float_pointer, int32_pointer, int64_pointer
from daemon.engine.cpu.vectors import FLOAT, I64, Writer, lanes, target_has
from daemon.models.formats import FORMATS

STRETCH_LEN = 256
"""Numbers of the columns of an item that are unpacked at once."""

TOKENS_AT_ONCE = 128
"""Tokens whose sums of an item lie in the nearest cache."""

AHEAD_BYTES = 2**13
"""How far ahead of the multiplication memory is fetched: a fetch from memory takes as long as
some rows of a small model. Four times as far is slower where rows are long.
"""

LANES = (8, 16, 32)
"""Tokens of a record whose lanes are tokens."""

AT_ONCE = 4
"""Tokens of records of their own that are multiplied with rows that are unpacked once."""

_ADDRESSES_BYTES = 8 * TILE
_SUMS_BYTES = 4 * TILE * AT_ONCE
_CODES_BYTES = COLUMNS_AT_ONCE * STRETCH_LEN
_SCALES_BYTES = _CODES_BYTES // 16 * 8
_TOTALS_BYTES = 4 * COLUMNS_AT_ONCE * TOKENS_AT_ONCE
_inner = njit(cache=True, error_model="numpy", inline="always")


SIDE = 16
"""Columns, and tokens, of a tile."""


@intrinsic
def write_tile(_typing: Any, sums: Any, sums_bytes: Any, output: Any, output_bytes: Any) -> Any:
    """float32 [tokens, columns] at `output`, of [columns, tokens] at `sums`; `SIDE` of each.

    Rows lie `sums_bytes` and `output_bytes` apart. For numba code.
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        sums_at, sums_bytes, output_at, output_bytes = values

        def places(address: Any, step_bytes: Any) -> list[Any]:
            steps = (builder.mul(step_bytes, writer.number(I64, row)) for row in range(SIDE))
            return [builder.add(address, step) for step in steps]

        vector = lanes(FLOAT, SIDE)
        rows = [writer.load(vector, at) for at in places(sums_at, sums_bytes)]
        for numbers, at in zip(
            writer.transposed(rows), places(output_at, output_bytes), strict=True
        ):
            writer.store(numbers, at)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 4), generate


def record_bytes(columns: int) -> int:
    """Bytes of a token of K numbers in a record: codes, scales and sums."""
    return columns + columns // 8 + columns // 4


@cache
def lanes_for(count: int) -> int:
    """How many tokens one record holds best, of T; without wide vectors, few."""
    few, some, many = LANES
    if count <= few or not target_has("avx512f"):
        return few
    return some if count <= some else many


@cache
def rounded():
    """The kernel that rounds states, a token in an item.

    states [T, K], K, records, tokens of a record; the tokens' rows among the states (int32) or 0,
    where it lies how many tokens there are (int64) or 0.
    """

    @ITEM
    def item(a, token):
        if a[10] != 0 and token >= int64_pointer(a[10])[0]:
            return
        width, lanes = a[6], a[8]
        lane = token % lanes
        record = a[7] + (token - lane) * (width + width // 8 + width // 4) + 4 * lane
        scales = record + lanes * width
        sums = scales + lanes * width // 8
        row = token
        if a[9] != 0:
            row = int32_pointer(a[9])[token]
        numbers = a[5] + 4 * row * width
        for chunk in range(width // 32):
            codes = record + 32 * lanes * chunk
            scale = scales + 4 * lanes * chunk
            round_chunk(numbers + 128 * chunk, codes, scale, sums + 8 * lanes * chunk, lanes)

    return item


@_inner
def _dots(form, count, rows, records, width, sums):
    if count == 1:
        dot_codes(form, 1, rows, AHEAD_BYTES, records, width, sums)
    elif count == 2:
        dot_codes(form, 2, rows, AHEAD_BYTES, records, width, sums)
    elif count == 3:
        dot_codes(form, 3, rows, AHEAD_BYTES, records, width, sums)
    else:
        dot_codes(form, 4, rows, AHEAD_BYTES, records, width, sums)


@cache
def rounded_singly(name):
    """The kernel that multiplies records of one token each.

    weight, bytes of a row, N, K, records [T], T, output, its stride, bias [N] or 0.
    """
    form = number_of(name)

    @ITEM
    def item(a, number):
        rows, sums = stack(_ADDRESSES_BYTES), stack(_SUMS_BYTES)
        record = a[8] + a[8] // 8 + a[8] // 4
        first = number * COLUMNS_AT_ONCE
        last = min(first + COLUMNS_AT_ONCE, a[7])
        for column in range(first, last, TILE):
            place(rows, a[5], column, last, a[6])
            columns = (column, min(column + TILE, last))
            for token in range(0, a[10], AT_ONCE):
                count = min(AT_ONCE, a[10] - token)
                _dots(form, count, rows, a[9] + token * record, a[8], sums)
                for beside in range(count):
                    write(a, sums + 4 * TILE * beside, token + beside, columns, True)

    return item


@_inner
def _tile(form, lanes, codes, scales, where, sums):
    states, width, start, count = where
    if lanes == 8:
        tile_codes(form, 8, codes, scales, STRETCH_LEN, states, width, start, count, sums)
    elif lanes == 16:
        tile_codes(form, 16, codes, scales, STRETCH_LEN, states, width, start, count, sums)
    else:
        tile_codes(form, 32, codes, scales, STRETCH_LEN, states, width, start, count, sums)


@_inner
def begin_totals(a, totals, first, last, tiles):
    """Set the sums of all tiles [columns, lanes] to the bias, or nothing."""
    sums, lanes = float_pointer(totals), a[14]
    for tile in range(tiles):
        for column in range(COLUMNS_AT_ONCE):
            start = np.float32(0.0)
            if a[13] != 0 and first + column < last:
                start = float_pointer(a[13])[first + column]
            at = (tile * COLUMNS_AT_ONCE + column) * lanes
            for lane in range(lanes):
                sums[at + lane] = start


@_inner
def end_totals(a, totals, first, last, begin, tiles):
    """Write the sums of all tiles to the output."""
    lanes = a[14]
    step = min(lanes, SIDE)
    for token in range(begin, min(begin + tiles * lanes, a[10]), step):
        tile, lane = (token - begin) // lanes, (token - begin) % lanes
        for column in range(first, last, SIDE):
            at = (tile * COLUMNS_AT_ONCE + column - first) * lanes + lane
            sums, output = totals + 4 * at, a[11] + 4 * (token * a[12] + column)
            if step == SIDE and token + SIDE <= a[10] and column + SIDE <= last:
                write_tile(sums, 4 * lanes, output, 4 * a[12])
                continue
            for row in range(min(step, a[10] - token)):
                for index in range(min(SIDE, last - column)):
                    total = float_pointer(sums)[index * lanes + row]
                    float_pointer(output)[row * a[12] + index] = total


@cache
def rounded_together(name):
    """The kernel that multiplies records of several tokens.

    Arguments as of `rounded_singly`; then the tokens of a record, of `LANES`.
    """
    form, kind = number_of(name), reader(FORMATS[name])
    length, scale_len = kind.length(FORMATS[name]), kind.scale_len

    @ITEM
    def item(a, number):
        codes, scales, totals = stack(_CODES_BYTES), stack(_SCALES_BYTES), stack(_TOTALS_BYTES)
        width = a[8]
        block_bytes = a[6] // (width // length)
        lanes = a[14]
        record = lanes * (width + width // 8 + width // 4)
        first = number * COLUMNS_AT_ONCE
        last = min(first + COLUMNS_AT_ONCE, a[7])
        for begin in range(0, a[10], TOKENS_AT_ONCE):
            end = min(begin + TOKENS_AT_ONCE, a[10])
            tiles = (end - begin + lanes - 1) // lanes
            begin_totals(a, totals, first, last, tiles)
            for start in range(0, width, STRETCH_LEN):
                count = min(STRETCH_LEN, width - start)
                for column in range(first, first + COLUMNS_AT_ONCE):
                    blocks = a[5] + min(column, last - 1) * a[6] + start // length * block_bytes
                    row = (column - first) * STRETCH_LEN
                    pairs = scales + row // scale_len * 8
                    ahead = COLUMNS_AT_ONCE * a[6]
                    unpack_codes(form, blocks, count // length, ahead, codes + row, pairs)
                for tile in range(tiles):
                    states = a[9] + (begin // lanes + tile) * record
                    for column in range(0, last - first, TILE):
                        row = column * STRETCH_LEN
                        pairs = scales + row // scale_len * 8
                        sums = totals + 4 * lanes * (tile * COLUMNS_AT_ONCE + column)
                        where = (states, width, start, count)
                        _tile(form, lanes, codes + row, pairs, where, sums)
            end_totals(a, totals, first, last, begin, tiles)

    return item
