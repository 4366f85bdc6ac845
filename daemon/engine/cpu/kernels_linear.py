"""The CPU kernels of matrix products of a few tokens, over float32 weights."""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np

from daemon.engine.cpu.numeric import inner, item
from daemon.engine.cpu.team import float_pointer, prefetch

COLUMNS_AT_ONCE = 32
"""Output columns in one item of a product."""

COLUMNS_IN_TURN = 64
"""The same where columns are read one after another."""


@inner
def four_by_four(w, width, x, output, stride):
    """Four columns of four tokens: sixteen sums that stay in registers."""
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = np.float32(0.0)
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = np.float32(0.0)
    for k in range(width):
        w0, w1, w2, w3 = w[k], w[width + k], w[2 * width + k], w[3 * width + k]
        x0, x1, x2, x3 = x[k], x[width + k], x[2 * width + k], x[3 * width + k]
        s00 += x0 * w0
        s01 += x0 * w1
        s02 += x0 * w2
        s03 += x0 * w3
        s10 += x1 * w0
        s11 += x1 * w1
        s12 += x1 * w2
        s13 += x1 * w3
        s20 += x2 * w0
        s21 += x2 * w1
        s22 += x2 * w2
        s23 += x2 * w3
        s30 += x3 * w0
        s31 += x3 * w1
        s32 += x3 * w2
        s33 += x3 * w3
    sums = ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))
    for token in range(4):
        for column in range(4):
            output[token * stride + column] = sums[token][column]


@inner
def four_by_one(w, width, x, output):
    """Four columns of one token."""
    s0 = s1 = s2 = s3 = np.float32(0.0)
    for k in range(width):
        s0 += x[k] * w[k]
        s1 += x[k] * w[width + k]
        s2 += x[k] * w[2 * width + k]
        s3 += x[k] * w[3 * width + k]
    output[0] = s0
    output[1] = s1
    output[2] = s2
    output[3] = s3


@inner
def _fetch(address, size_bytes):
    """Ask for memory a cache line at a time; past an array's end this does nothing."""
    for byte in range(0, size_bytes, 64):
        prefetch(address + byte)


@item
def linear_item(a, item):
    """Some columns of `output` [T, N] = `states` [T, K] * weight [N, K] transposed (+ bias [N]).

    weight, bias (or 0), states, T, K, N, output. Weights are read once for all tokens: four
    columns stay in the nearest cache while the next four are fetched, a part with every tile.
    """
    num_tokens, width, num_columns = a[7], a[8], a[9]
    first = item * COLUMNS_AT_ONCE
    last = min(first + COLUMNS_AT_ONCE, num_columns)
    tiled = num_tokens - num_tokens % 4
    fetched_bytes = 16 * width // max(tiled // 4, 1) // 64 * 64 + 64
    for column in range(first, last - last % 4, 4):
        w = float_pointer(a[4] + 4 * column * width)
        ahead = a[4] + 4 * (column + 4) * width
        for token in range(0, tiled, 4):
            _fetch(ahead, fetched_bytes)
            ahead += fetched_bytes
            x = float_pointer(a[6] + 4 * token * width)
            output = float_pointer(a[10] + 4 * (token * num_columns + column))
            four_by_four(w, width, x, output, num_columns)
        for token in range(tiled, num_tokens):
            x = float_pointer(a[6] + 4 * token * width)
            output = float_pointer(a[10] + 4 * (token * num_columns + column))
            four_by_one(w, width, x, output)
    for column in range(last - last % 4, last):
        w = float_pointer(a[4] + 4 * column * width)
        for token in range(num_tokens):
            x = float_pointer(a[6] + 4 * token * width)
            total = np.float32(0.0)
            for k in range(width):
                total += x[k] * w[k]
            float_pointer(a[10])[token * num_columns + column] = total
    if a[5] != 0:
        bias = float_pointer(a[5])
        output = float_pointer(a[10])
        for token in range(num_tokens):
            for column in range(first, last):
                output[token * num_columns + column] += bias[column]


@item
def in_turn_item(a, item):
    """The same of one token, column by column.

    The weights are read as they lie in memory: some processors then fetch ahead best themselves.
    Arguments as of `linear_item`; items are of `COLUMNS_IN_TURN`.
    """
    width = a[8]
    first = item * COLUMNS_IN_TURN
    last = min(first + COLUMNS_IN_TURN, a[9])
    x, output = float_pointer(a[6]), float_pointer(a[10])
    for column in range(first, last):
        w = float_pointer(a[4] + 4 * column * width)
        total = np.float32(0.0)
        for k in range(width):
            total += x[k] * w[k]
        output[column] = total
    if a[5] != 0:
        bias = float_pointer(a[5])
        for column in range(first, last):
            output[column] += bias[column]
