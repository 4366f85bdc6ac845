"""The CPU kernels of products of bfloat16 by the processor's matrix tiles, of every format.

Compiled and called as those of `quantised_kernels`.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from functools import cache

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.dots import BFLOAT16, number_of, stack, unpack_row
from daemon.engine.cpu.matrix_dots import (
    COLUMNS,
    MATRIX,
    begin_matrices,
    end_matrices,
    matrix_pairs,
    pack_rows,
)
from daemon.engine.cpu.quantised_kernels import COLUMNS_AT_ONCE, ITEM
from daemon.engine.cpu.rounded_kernels import begin_totals, end_totals
from daemon.engine.cpu.team import int64_pointer
from daemon.models.formats import FORMATS

STRETCH_LEN = 512
"""Numbers of the columns of an item that are unpacked at once."""

TOKENS_AT_ONCE = 512
"""Tokens that unpacked numbers are multiplied with."""

_ADDRESSES_BYTES = 8 * MATRIX
_SCRATCH_BYTES = 2 * COLUMNS_AT_ONCE * STRETCH_LEN
_TOTALS_BYTES = 4 * COLUMNS_AT_ONCE * TOKENS_AT_ONCE
assert COLUMNS_AT_ONCE == COLUMNS


@cache
def packed():
    """The kernel that rounds states to bfloat16, a record of `MATRIX` tokens in an item.

    states [T, K], K, records, T.
    """

    @ITEM
    def item(a, number):
        width, first = a[6], MATRIX * number
        tokens = stack(_ADDRESSES_BYTES)
        for lane in range(MATRIX):
            token = min(first + lane, a[8] - 1)
            int64_pointer(tokens)[lane] = a[5] + 4 * token * width
        pack_rows(tokens, width, a[7] + 2 * width * first)

    return item


@cache
def matrices(name):
    """The kernel that multiplies records of bfloat16.

    weight, bytes of a row, N, K, records [T], T, output, its stride, bias [N] or 0, `MATRIX`.
    """
    form, length = number_of(name), reader(FORMATS[name]).length(FORMATS[name])
    lies_ready = name == "BF16"

    @ITEM
    def item(a, number):
        scratch, totals = stack(_SCRATCH_BYTES), stack(_TOTALS_BYTES)
        config, before = stack(64), stack(64)
        begin_matrices(config, before)
        width = a[8]
        block_bytes, record = a[6] // (width // length), 2 * MATRIX * width
        first = number * COLUMNS_AT_ONCE
        last = min(first + COLUMNS_AT_ONCE, a[7])
        for begin in range(0, a[10], TOKENS_AT_ONCE):
            end = min(begin + TOKENS_AT_ONCE, a[10])
            tiles = (end - begin + MATRIX - 1) // MATRIX
            begin_totals(a, totals, first, last, tiles)
            for start in range(0, width, STRETCH_LEN):
                count = min(STRETCH_LEN, width - start)
                weights, row_bytes = scratch, 2 * STRETCH_LEN
                if lies_ready and last - first == COLUMNS_AT_ONCE:
                    weights, row_bytes = a[5] + first * a[6] + 2 * start, a[6]
                for column in range(COLUMNS_AT_ONCE if weights == scratch else 0):
                    row = a[5] + min(first + column, last - 1) * a[6]
                    blocks = row + start // length * block_bytes
                    ahead = COLUMNS_AT_ONCE * a[6]
                    output = scratch + 2 * STRETCH_LEN * column
                    unpack_row(form, BFLOAT16, blocks, count // length, ahead, output)
                for tile in range(0, tiles, 2):
                    states = a[9] + (begin // MATRIX + tile) * record + 2 * MATRIX * start
                    sums = totals + 4 * MATRIX * COLUMNS_AT_ONCE * tile
                    if tile + 1 < tiles:
                        matrix_pairs(2, weights, row_bytes, states, record, count, sums)
                    else:
                        matrix_pairs(1, weights, row_bytes, states, record, count, sums)
            end_totals(a, totals, first, last, begin, tiles)
        end_matrices(before)

    return item
