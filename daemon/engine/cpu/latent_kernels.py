"""The CPU kernels of latent attention: absorbed queries, the rows of single tokens, and values.

The projection is float32 [heads, own + value_dim, rank] as `LatentProjection` has it: first the
rows of a head's key, then those of its value. Called by address, as those of `quantised_kernels`.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from functools import cache

import numpy as np

from daemon.engine.cpu.attention_dots import POSITIONS, soften
from daemon.engine.cpu.numeric import exactly
from daemon.engine.cpu.numeric import item as vectorised
from daemon.engine.cpu.quantised_kernels import ITEM
from daemon.engine.cpu.team import float_pointer, int32_pointer

ABSORBED_AT_ONCE, EMITTED_AT_ONCE = 128, 16
"""Numbers of a head in one item of a product."""

_AT_ONCE = 4
"""Rows that share what is loaded of a query, a mean or a state; two heads share what is loaded of
the rows."""

_LEAST = np.float32(-3e38)
"""Below every score, and finite."""


@vectorised
def _add_four(output, count, rows, stride, w0, w1, w2, w3):
    """Adds four rows of `count` numbers, `stride` apart, by their weights."""
    for lane in range(count):
        output[lane] += (
            w0 * rows[lane]
            + w1 * rows[stride + lane]
            + w2 * rows[2 * stride + lane]
            + w3 * rows[3 * stride + lane]
        )


@vectorised
def _add(output, count, row, weight):
    for lane in range(count):
        output[lane] += weight * row[lane]


@vectorised
def _dot(states, row, count):
    total = np.float32(0.0)
    for lane in range(count):
        total += states[lane] * row[lane]
    return total


@vectorised
def _dot_four(left, right, rows, first, count, sums, more):
    """Adds the products of `count` numbers of two queries with those of four rows, from `first` on,
    to their sums.
    """
    behind = 4 * first
    r0, r1 = float_pointer(rows[0] + behind), float_pointer(rows[1] + behind)
    r2, r3 = float_pointer(rows[2] + behind), float_pointer(rows[3] + behind)
    s0 = s1 = s2 = s3 = np.float32(0.0)
    t0 = t1 = t2 = t3 = np.float32(0.0)
    for lane in range(count):
        x, y = left[lane], right[lane]
        s0 += x * r0[lane]
        s1 += x * r1[lane]
        s2 += x * r2[lane]
        s3 += x * r3[lane]
        t0 += y * r0[lane]
        t1 += y * r1[lane]
        t2 += y * r2[lane]
        t3 += y * r3[lane]
    sums[0] += s0
    sums[1] += s1
    sums[2] += s2
    sums[3] += s3
    more[0] += t0
    more[1] += t1
    more[2] += t2
    more[3] += t3


@vectorised
def _add_rows(left, right, rows, count, weights, more):
    """Adds four rows of `count` numbers by their weights for each of two heads."""
    r0, r1 = float_pointer(rows[0]), float_pointer(rows[1])
    r2, r3 = float_pointer(rows[2]), float_pointer(rows[3])
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    v0, v1, v2, v3 = more[0], more[1], more[2], more[3]
    for lane in range(count):
        x0, x1, x2, x3 = r0[lane], r1[lane], r2[lane], r3[lane]
        left[lane] += w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        right[lane] += v0 * x0 + v1 * x1 + v2 * x2 + v3 * x3


@exactly
def _soften(scores, count, scale):
    soften(scores, count, scale)


@cache
def absorbed():
    """The kernel of queries to rows: some numbers of one head, of all tokens.

    projection, own, own + value_dim, rank, queries, their row and head strides, T, heads, output
    [T, heads, rank].
    """

    @ITEM
    def item(a, number):
        own, rank, heads = a[6], a[8], a[13]
        parts = (rank + ABSORBED_AT_ONCE - 1) // ABSORBED_AT_ONCE
        head, part = number // parts, number % parts
        first = part * ABSORBED_AT_ONCE
        count = min(ABSORBED_AT_ONCE, rank - first)
        weight = a[5] + 4 * (head * a[7] * rank + first)
        for token in range(a[12]):
            states = float_pointer(a[9] + 4 * (token * a[10] + head * a[11]))
            output = float_pointer(a[14] + 4 * ((token * heads + head) * rank + first))
            for lane in range(count):
                output[lane] = np.float32(0.0)
            whole = own - own % _AT_ONCE
            for row in range(0, whole, _AT_ONCE):
                rows = float_pointer(weight + 4 * row * rank)
                some = states[row], states[row + 1], states[row + 2], states[row + 3]
                _add_four(output, count, rows, rank, some[0], some[1], some[2], some[3])
            for row in range(whole, own):
                _add(output, count, float_pointer(weight + 4 * row * rank), states[row])

    return item


@cache
def emitted():
    """The kernel of values: some numbers of one head, of all tokens.

    projection, own, own + value_dim, rank, means of rows [T, heads, rank], T, heads, output
    [T, heads, value_dim].
    """

    @ITEM
    def item(a, number):
        own, rank, heads = a[6], a[8], a[11]
        value_dim = a[7] - own
        parts = (value_dim + EMITTED_AT_ONCE - 1) // EMITTED_AT_ONCE
        head, part = number // parts, number % parts
        first = part * EMITTED_AT_ONCE
        last = min(first + EMITTED_AT_ONCE, value_dim)
        weight = a[5] + 4 * (head * a[7] + own) * rank
        for token in range(a[10]):
            states = float_pointer(a[9] + 4 * (token * heads + head) * rank)
            output = float_pointer(a[12] + 4 * (token * heads + head) * value_dim)
            for row in range(first, last):
                output[row] = _dot(states, float_pointer(weight + 4 * row * rank), rank)

    return item


@cache
def attended():
    """The kernel of attention to rows: one row of one token, and some of its heads.

    absorbed queries [T, heads, rank], the turned numbers of queries, their row and head strides,
    pool, the layer's shift, block stride, block size, tables int32 [B, width], width, tokens int32
    [B] (rows of queries and output), lens int32 [B], heads, rank, turned, scale float32 [1], output
    [T, heads, rank], heads at once.
    """

    @ITEM
    def item(a, number):
        heads, rank, turned, at_once = a[17], a[18], a[19], a[22]
        groups = (heads + at_once - 1) // at_once
        row, first_head = number // groups, number % groups * at_once
        some = min(at_once, heads - first_head)
        token = np.int64(int32_pointer(a[15])[row])
        length = np.int64(int32_pointer(a[16])[row])
        table = int32_pointer(a[13] + 4 * row * a[14])
        padded = (length + POSITIONS - 1) // POSITIONS * POSITIONS
        places = np.empty(padded, np.int64)
        for position in range(length):
            block = np.int64(table[position // a[12]])
            at = block * a[11] + a[10] + position % a[12] * (rank + turned)
            places[position] = a[9] + 4 * at
        for position in range(length, padded):
            places[position] = places[length - 1]
        # A head more, where they are odd: it has the last one's query, and its own numbers.
        rounded = some + some % 2
        scores = np.zeros((rounded, padded), np.float32)
        means = np.zeros((rounded, rank), np.float32)
        for position in range(0, padded, _AT_ONCE):
            rows = places[position : position + _AT_ONCE]
            for index in range(0, rounded, 2):
                left, right = first_head + index, first_head + min(index + 1, some - 1)
                sums = scores[index, position : position + _AT_ONCE]
                more = scores[index + 1, position : position + _AT_ONCE]
                q0 = float_pointer(a[5] + 4 * (token * heads + left) * rank)
                q1 = float_pointer(a[5] + 4 * (token * heads + right) * rank)
                _dot_four(q0, q1, rows, 0, rank, sums, more)
                q0 = float_pointer(a[6] + 4 * (token * a[7] + left * a[8]))
                q1 = float_pointer(a[6] + 4 * (token * a[7] + right * a[8]))
                _dot_four(q0, q1, rows, rank, turned, sums, more)
        for index in range(rounded):
            for position in range(length, padded):
                scores[index, position] = _LEAST
            _soften(scores.ctypes.data + 4 * index * padded, length, float_pointer(a[20])[0])
        for position in range(0, padded, _AT_ONCE):
            rows = places[position : position + _AT_ONCE]
            for index in range(0, rounded, 2):
                weights = scores[index, position : position + _AT_ONCE]
                more = scores[index + 1, position : position + _AT_ONCE]
                _add_rows(means[index], means[index + 1], rows, rank, weights, more)
        output = float_pointer(a[21] + 4 * (token * heads + first_head) * rank)
        for index in range(some):
            for lane in range(rank):
                output[index * rank + lane] = means[index, lane]

    return item


@cache
def turned():
    """The kernel that turns pairs of neighbouring numbers, in place: all heads of some tokens.

    states, their row and head strides, T, heads, numbers that are turned, cos and sin [T, numbers].
    """

    @ITEM
    def item(a, token):
        half = a[10] // 2
        cos = float_pointer(a[11] + 8 * token * half)
        sin = float_pointer(a[12] + 8 * token * half)
        for head in range(a[9]):
            states = float_pointer(a[5] + 4 * (token * a[6] + head * a[7]))
            for pair in range(half):
                first, second = states[2 * pair], states[2 * pair + 1]
                states[2 * pair] = first * cos[pair] - second * sin[pair]
                states[2 * pair + 1] = second * cos[pair] + first * sin[pair]

    return item
