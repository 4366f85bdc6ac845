"""The CPU kernels over quantised weights: products of a few tokens, rows unpacked, rows looked up.

Numbers are those of the format, exactly; sums may be reordered.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np

from daemon.engine.cpu.kernels_linear import COLUMNS_AT_ONCE, four_by_four, four_by_one
from daemon.engine.cpu.numeric import item
from daemon.engine.cpu.rows import dot_rows, unpack_row, unpack_row_narrow
from daemon.engine.cpu.team import float_pointer, int64_pointer

ROWS_AT_ONCE = 16
"""Rows in one item of those that unpack."""


@item
def product_item(a, item):
    """Some columns of `output` [T, N] = `states` [T, K] * weight [N, K] transposed (+ bias [N]).

    format's code, weight, bytes of a row, bias (or 0), states, T, K, N, output, its row stride.
    One token is multiplied while its weights are unpacked; for more tokens four rows are unpacked
    into the nearest cache, once for all.
    """
    code, row_bytes, num_tokens, width = a[4], a[6], a[9], a[10]
    first = item * COLUMNS_AT_ONCE
    last = min(first + COLUMNS_AT_ONCE, a[11])
    fours = first + (last - first) // 4 * 4
    scratch = np.empty(4 * width, np.float32)
    near = scratch.ctypes.data
    for column in range(first, fours, 4):
        rows = a[5] + column * row_bytes
        output = a[12] + 4 * column
        if num_tokens == 1:
            dot_rows(code, rows, row_bytes, width, a[8], output)
            continue
        for row in range(4):
            unpack_row(code, rows + row * row_bytes, width, near + 4 * row * width)
        tiled = num_tokens - num_tokens % 4
        for token in range(0, tiled, 4):
            x, y = float_pointer(a[8] + 4 * token * width), output + 4 * token * a[13]
            four_by_four(scratch, width, x, float_pointer(y), a[13])
        for token in range(tiled, num_tokens):
            x, y = float_pointer(a[8] + 4 * token * width), output + 4 * token * a[13]
            four_by_one(scratch, width, x, float_pointer(y))
    for column in range(fours, last):
        unpack_row(code, a[5] + column * row_bytes, width, near)
        for token in range(num_tokens):
            x = float_pointer(a[8] + 4 * token * width)
            total = np.float32(0.0)
            for k in range(width):
                total += x[k] * scratch[k]
            float_pointer(a[12])[token * a[13] + column] = total
    if a[7] != 0:
        bias, output = float_pointer(a[7]), float_pointer(a[12])
        for token in range(num_tokens):
            for column in range(first, last):
                output[token * a[13] + column] += bias[column]


@item
def unpack_item(a, item):
    """Some rows of a weight as float32, or as bfloat16 if `narrow`.

    format's code, weight, bytes of a row, N, K, output [N, K], narrow.
    """
    first = item * ROWS_AT_ONCE
    for row in range(first, min(first + ROWS_AT_ONCE, a[7])):
        source = a[5] + row * a[6]
        if a[10] != 0:
            unpack_row_narrow(a[4], source, a[8], a[9] + 2 * row * a[8])
        else:
            unpack_row(a[4], source, a[8], a[9] + 4 * row * a[8])


@item
def look_up_item(a, item):
    """One row as float32: `output` [T, K] are the rows `tokens` int64 [T] of a weight.

    format's code, weight, bytes of a row, tokens, K, output.
    """
    row = int64_pointer(a[7])[item]
    unpack_row(a[4], a[5] + row * a[6], a[8], a[9] + 4 * item * a[8])
