"""The CPU kernels: paged decode attention and what stands between the products, in float32.

Sums may be reordered (that is what makes them fast), nothing is approximated. Each kernel takes
its arguments as integers: sizes, and addresses of contiguous arrays unless a stride is given.
"""

from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types

from daemon.engine.cpu.team import float_pointer, int32_pointer, next_item, power_of_two

_FASTMATH = {"reassoc", "contract", "nsz", "arcp", "nnan"}
_kernel: Any = cfunc(
    types.void(types.CPointer(types.int64)), cache=True, fastmath=_FASTMATH, error_model="numpy"
)
_inner: Any = njit(cache=True, fastmath=_FASTMATH, error_model="numpy", inline="always")
# Where the order of sums matters: no reassociation, and no inlining that would bring it in.
_exactly: Any = njit(cache=True, fastmath={"contract"}, error_model="numpy")

TOKENS_AT_ONCE = 8
"""Tokens that a thread takes from the small kernels' work at once."""


@_exactly
def _exp(x):  # type: ignore[no-untyped-def]
    """e ** x to the last bit or two of a float32; unlike the C library's it runs in lanes.

    x = k ln 2 + r, |r| <= ln 2 / 2: 2 ** k is an exponent, and e ** r a short series.
    """
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    k = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - k * np.float32(0.693359375) - k * np.float32(-2.12194440e-4)
    series = np.float32(1.0 / 5040)
    for factor in (1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0):
        series = series * r + np.float32(factor)
    return series * power_of_two(np.int32(k))


@_inner
def _scores(query, pool, table, layout, scale, scores, num_groups, head_dim):  # type: ignore[no-untyped-def]
    """Scores [groups, length] of one sequence's queries over one key head; their maxima last."""
    length, block_stride, shift, block_size, row_stride = layout
    for group in range(num_groups):
        scores[group, length] = -np.inf
    for position in range(length):
        block = table[position // block_size]
        at = block * block_stride + shift + (position % block_size) * row_stride
        for group in range(num_groups):
            total = np.float32(0.0)
            for lane in range(head_dim):
                total += query[group * head_dim + lane] * pool[at + lane]
            total *= scale
            scores[group, position] = total
            scores[group, length] = max(scores[group, length], total)


@_inner
def _weigh(pool, table, layout, scores, output, num_groups, head_dim):  # type: ignore[no-untyped-def]
    """Softmax of `scores`, and the values weighed by it into `output` [groups, head_dim]."""
    length, block_stride, shift, block_size, row_stride = layout
    for group in range(num_groups):
        most = scores[group, length]
        total = np.float32(0.0)
        for position in range(length):
            weight = _exp(scores[group, position] - most)
            scores[group, position] = weight
            total += weight
        scores[group, length] = np.float32(1.0) / total
        for lane in range(head_dim):
            output[group * head_dim + lane] = np.float32(0.0)
    for position in range(length):
        block = table[position // block_size]
        at = block * block_stride + shift + (position % block_size) * row_stride
        for group in range(num_groups):
            weight = scores[group, position]
            for lane in range(head_dim):
                output[group * head_dim + lane] += weight * pool[at + lane]
    for group in range(num_groups):
        norm = scores[group, length]
        for lane in range(head_dim):
            output[group * head_dim + lane] *= norm


@_inner
def _attend(query, pool, table, keys, values, scale, scores, output, num_groups, head_dim):  # type: ignore[no-untyped-def]
    _scores(query, pool, table, keys, scale, scores, num_groups, head_dim)
    _weigh(pool, table, values, scores, output, num_groups, head_dim)


@_kernel
def decode_attention(arguments):  # type: ignore[no-untyped-def]
    """Attention of rows of one token each: a work item is one row and one key head.

    After the counter: query, its row stride, pool, layer's shift, block stride, block size, tables
    int32 [B, width], width, tokens int32 [B] (row of query and output), lens int32 [B], B,
    kv heads, groups, head_dim, scale float32 [1], output [T, kv heads * groups * head_dim].
    """
    a = carray(arguments, 17)
    pool = float_pointer(a[3])
    row_stride = a[12] * a[14]
    num_rows, num_heads, num_groups, head_dim = a[11], a[12], a[13], a[14]
    scale = float_pointer(a[15])[0]
    tokens, lens = int32_pointer(a[9]), int32_pointer(a[10])
    while True:
        item = next_item(arguments)
        if item >= num_rows * num_heads:
            break
        row, head = item // num_heads, item % num_heads
        length = np.int64(lens[row])
        scores = np.empty((num_groups, length + 1), np.float32)
        token, width = np.int64(tokens[row]), num_groups * head_dim
        query = float_pointer(a[1] + 4 * (token * a[2] + head * width))
        output = float_pointer(a[16] + 4 * (token * num_heads + head) * width)
        table = int32_pointer(a[7] + 4 * row * a[8])
        shift = a[4] + head * head_dim
        keys = (length, a[5], shift, a[6], row_stride)
        values = (length, a[5], shift + a[6] * row_stride, a[6], row_stride)
        # Constants let the compiler unroll the loops of the usual heads.
        if head_dim == 64:
            _attend(query, pool, table, keys, values, scale, scores, output, num_groups, 64)
        elif head_dim == 128:
            _attend(query, pool, table, keys, values, scale, scores, output, num_groups, 128)
        else:
            _attend(query, pool, table, keys, values, scale, scores, output, num_groups, head_dim)


@_kernel
def store(arguments):  # type: ignore[no-untyped-def]
    """Write the step's keys and values to their pages.

    After the counter: keys, values, their row stride, pool, layer's shift, block stride, block
    size, blocks int32 [T], offsets int32 [T], T, width (kv heads * head_dim).
    """
    a = carray(arguments, 12)
    pool = float_pointer(a[4])
    blocks, offsets, width = int32_pointer(a[8]), int32_pointer(a[9]), a[11]
    while True:
        first = next_item(arguments) * TOKENS_AT_ONCE
        if first >= a[10]:
            break
        for token in range(first, min(first + TOKENS_AT_ONCE, a[10])):
            at = blocks[token] * a[6] + a[5] + offsets[token] * width
            key = float_pointer(a[1] + 4 * token * a[3])
            value = float_pointer(a[2] + 4 * token * a[3])
            for lane in range(width):
                pool[at + lane] = key[lane]
                pool[at + a[7] * width + lane] = value[lane]


@_kernel
def rotate(arguments):  # type: ignore[no-untyped-def]
    """Rotary positions in place, over the first heads of each row.

    After the counter: states, row stride, T, heads, head_dim, rotary_dim, cos, sin
    [T, rotary_dim].
    """
    a = carray(arguments, 9)
    num_heads, head_dim, half = a[4], a[5], a[6] // 2
    while True:
        first = next_item(arguments) * TOKENS_AT_ONCE
        if first >= a[3]:
            break
        for token in range(first, min(first + TOKENS_AT_ONCE, a[3])):
            cos = float_pointer(a[7] + 8 * token * half)
            sin = float_pointer(a[8] + 8 * token * half)
            for head in range(num_heads):
                states = float_pointer(a[1] + 4 * (token * a[2] + head * head_dim))
                for lane in range(half):
                    low, high = states[lane], states[lane + half]
                    states[lane] = low * cos[lane] - high * sin[lane]
                    states[lane + half] = high * cos[lane + half] + low * sin[lane + half]


@_kernel
def rms_norm(arguments):  # type: ignore[no-untyped-def]
    """`output` = norm(`states`) * weight over rows of `width`; in place is allowed.

    Row r lies at (r // together) * stride + (r % together) * width, in states and output alike.
    With `added` (its address not 0, dense) states += added comes first, and states keeps the sum.
    After the counter: states, stride, together, added, number of rows, width, weight, epsilon
    float32 [1], output, its stride.
    """
    a = carray(arguments, 11)
    together, width = a[3], a[6]
    weight, epsilon = float_pointer(a[7]), float_pointer(a[8])[0]
    while True:
        first = next_item(arguments) * TOKENS_AT_ONCE
        if first >= a[5]:
            break
        for row in range(first, min(first + TOKENS_AT_ONCE, a[5])):
            group, inside = row // together, (row % together) * width
            states = float_pointer(a[1] + 4 * (group * a[2] + inside))
            output = float_pointer(a[9] + 4 * (group * a[10] + inside))
            if a[4] != 0:
                added = float_pointer(a[4] + 4 * row * width)
                for lane in range(width):
                    states[lane] += added[lane]
            total = np.float32(0.0)
            for lane in range(width):
                total += states[lane] * states[lane]
            norm = np.float32(1.0) / np.sqrt(total / np.float32(width) + epsilon)
            for lane in range(width):
                output[lane] = weight[lane] * (states[lane] * norm)


@_kernel
def silu_mul(arguments):  # type: ignore[no-untyped-def]
    """`output` [T, width] = silu(first half) * second half of `states` [T, 2 * width].

    After the counter: states, T, width, output.
    """
    a = carray(arguments, 5)
    width = a[3]
    while True:
        first = next_item(arguments) * TOKENS_AT_ONCE
        if first >= a[2]:
            break
        for token in range(first, min(first + TOKENS_AT_ONCE, a[2])):
            gate = float_pointer(a[1] + 8 * token * width)
            up = float_pointer(a[1] + 4 * (2 * token + 1) * width)
            output = float_pointer(a[4] + 4 * token * width)
            for lane in range(width):
                value = gate[lane]
                output[lane] = value / (np.float32(1.0) + _exp(-value)) * up[lane]
