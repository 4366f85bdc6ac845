"""The CPU kernels over weights in blocks: products and unpacking, compiled for each format in use.

A kernel is compiled by itself when it is first asked for, and a call names it by its address, so
that a start compiles only what its model has. As in `kernels`, it does one item of a call, whose
arguments `a` are integers. `daemon.engine.cpu.quantised_calls` writes the calls.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from functools import cache

from numba import cfunc, njit, types

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.dots import (
    FLOAT32,
    TILE,
    dot_floats,
    number_of,
    stack,
    tile_floats,
    unpack_row,
)
from daemon.engine.cpu.team import float_pointer, int32_pointer, int64_pointer
from daemon.models.formats import FORMATS

COLUMNS_AT_ONCE = 32
"""Output columns in one item of a product."""

ROWS_AT_ONCE = 8
"""Rows in one item of unpacking."""

STRETCH_LEN = 512
"""Numbers of a row that are unpacked at once where several tokens share them."""

_GROUP = 2 * TILE  # columns whose numbers share a scratch, and the nearest cache with the states
_SCRATCH_BYTES = 4 * _GROUP * STRETCH_LEN
_ADDRESSES_BYTES = 8 * TILE
_SUMS_BYTES = 4 * TILE * TILE
ITEM = cfunc(types.void(types.CPointer(types.int64), types.int64), cache=True, error_model="numpy")
_inner = njit(cache=True, error_model="numpy", inline="always")


def _numbers(name):
    """The number of a format, and the numbers of a block."""
    return number_of(name), reader(FORMATS[name]).length(FORMATS[name])


@_inner
def place(addresses, base, first, last, step_bytes):
    """Addresses of `TILE` rows from `first` on; those past the last are the last one's."""
    for index in range(TILE):
        int64_pointer(addresses)[index] = base + min(first + index, last - 1) * step_bytes


@_inner
def write(a, sums, token, columns, begin):
    """Put the sums of one token to some columns of the output, or add them.

    a[11] output, a[12] its stride, a[13] bias or 0.
    """
    output = float_pointer(a[11])
    at = token * a[12]
    for index in range(columns[1] - columns[0]):
        column = columns[0] + index
        if not begin:
            output[at + column] += float_pointer(sums)[index]
        elif a[13] != 0:
            output[at + column] = float_pointer(sums)[index] + float_pointer(a[13])[column]
        else:
            output[at + column] = float_pointer(sums)[index]


@cache
def floats_singly(name):
    """The kernel of a float product, token by token: numbers never leave the registers.

    weight, bytes of a row, N, K, states [T, K], T, output, its stride, bias [N] or 0.
    """
    form, length = _numbers(name)

    @ITEM
    def item(a, number):
        rows, sums = stack(_ADDRESSES_BYTES), stack(_SUMS_BYTES)
        first = number * COLUMNS_AT_ONCE
        last = min(first + COLUMNS_AT_ONCE, a[7])
        for column in range(first, last, TILE):
            place(rows, a[5], column, last, a[6])
            for token in range(a[10]):
                states = a[9] + 4 * token * a[8]
                dot_floats(form, rows, TILE * a[6], a[8] // length, states, sums)
                write(a, sums, token, (column, min(column + TILE, last)), True)

    return item


@cache
def floats_together(name):
    """The kernel of a float product that unpacks stretches of rows once for all tokens.

    Arguments as of `floats_singly`.
    """
    form, length = _numbers(name)

    @ITEM
    def item(a, number):
        scratch, tokens, sums = stack(_SCRATCH_BYTES), stack(_ADDRESSES_BYTES), stack(_SUMS_BYTES)
        first = number * COLUMNS_AT_ONCE
        last = min(first + COLUMNS_AT_ONCE, a[7])
        for group in range(first, last, _GROUP):
            for start in range(0, a[8], STRETCH_LEN):
                count = min(STRETCH_LEN, a[8] - start)
                for index in range(_GROUP):
                    row = a[5] + min(group + index, last - 1) * a[6]
                    blocks = row + start // length * (a[6] // (a[8] // length))
                    output = scratch + 4 * STRETCH_LEN * index
                    unpack_row(form, FLOAT32, blocks, count // length, _GROUP * a[6], output)
                for token in range(0, a[10], TILE):
                    place(tokens, a[9] + 4 * start, token, a[10], 4 * a[8])
                    for column in range(group, min(group + _GROUP, last), TILE):
                        here = scratch + 4 * STRETCH_LEN * (column - group)
                        tile_floats(here, STRETCH_LEN, tokens, count, sums)
                        for index in range(min(TILE, a[10] - token)):
                            some = sums + 4 * TILE * index
                            columns = (column, min(column + TILE, last))
                            write(a, some, token + index, columns, start == 0)

    return item


@cache
def unpacked(name, target):
    """The kernel that unpacks rows to float32 or bfloat16 (`target`).

    weight, bytes of a row, number of rows, K, the rows' indices (int32) or 0, output [rows, K].
    """
    form, length = _numbers(name)
    number_bytes = 4 if target == FLOAT32 else 2

    @ITEM
    def item(a, number):
        first = number * ROWS_AT_ONCE
        for index in range(first, min(first + ROWS_AT_ONCE, a[7])):
            row = index
            if a[9] != 0:
                row = int32_pointer(a[9])[index]
            blocks = a[5] + row * a[6]
            output = a[10] + number_bytes * index * a[8]
            unpack_row(form, target, blocks, a[8] // length, a[6], output)

    return item


@cache
def reordered():
    """The kernel that brings a token's states into another order.

    states [T, K], K, order int32 [K], output [T, K].
    """

    @ITEM
    def item(a, token):
        states = float_pointer(a[5] + 4 * token * a[6])
        output = float_pointer(a[8] + 4 * token * a[6])
        order = int32_pointer(a[7])
        for column in range(a[6]):
            output[column] = states[order[column]]

    return item
