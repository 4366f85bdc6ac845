"""The CPU kernels: paged decode attention and what surrounds it, in float32.

Sums may be reordered (that is what makes them fast), nothing is approximated. A kernel does one
item of a call, whose arguments `a` are integers: sizes, and addresses of arrays whose rows lie
next to each other unless a stride is given. `daemon.engine.cpu.calls` writes the calls.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np
from numba import cfunc, njit, types

from daemon.engine.cpu.team import (
    CALL_WIDTH,
    call_item,
    count_up,
    float_pointer,
    int32_pointer,
    int64_pointer,
    power_of_two,
    prefetch,
    read_now,
)

LINEAR, NORM, ROTATE, STORE, ATTEND, SILU_MUL = range(6)
"""The opcodes."""

BY_ADDRESS = 32
"""The opcode of a kernel that is compiled by itself: its address is the first argument."""

TOKENS_AT_ONCE = 8
"""Tokens in one item of the small kernels."""

COLUMNS_AT_ONCE = 32
"""Output columns in one item of a product."""

_SPINS = 4000
_FASTMATH = {"reassoc", "contract", "nsz", "arcp", "nnan"}
_inner = njit(cache=True, fastmath=_FASTMATH, error_model="numpy", inline="always")
_item = njit(cache=True, fastmath=_FASTMATH, error_model="numpy")
# Where the order of sums matters: no reassociation, and no inlining that would bring it in.
_exactly = njit(cache=True, fastmath={"contract"}, error_model="numpy")
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@_exactly
def _exp(x):
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
def _scores(query, pool, table, layout, scale, scores, num_groups, head_dim):
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
def _weigh(pool, table, layout, scores, output, num_groups, head_dim):
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
def _attend(query, pool, table, keys, values, scale, scores, output, num_groups, head_dim):
    _scores(query, pool, table, keys, scale, scores, num_groups, head_dim)
    _weigh(pool, table, values, scores, output, num_groups, head_dim)


@_item
def _attend_item(a, item):
    """Attention of one row of one token, and of one key head with the query heads that share it.

    query, its row stride, pool, the layer's shift, block stride, block size, tables int32
    [B, width], width, tokens int32 [B] (rows of query and output), lens int32 [B], kv heads,
    groups, head_dim, scale float32 [1], output [T, kv heads * groups * head_dim].
    """
    num_heads, num_groups, head_dim = a[14], a[15], a[16]
    row, head = item // num_heads, item % num_heads
    pool, scale = float_pointer(a[6]), float_pointer(a[17])[0]
    token = np.int64(int32_pointer(a[12])[row])
    length = np.int64(int32_pointer(a[13])[row])
    width = num_groups * head_dim
    query = float_pointer(a[4] + 4 * (token * a[5] + head * width))
    output = float_pointer(a[18] + 4 * (token * num_heads + head) * width)
    table = int32_pointer(a[10] + 4 * row * a[11])
    scores = np.empty((num_groups, length + 1), np.float32)
    row_stride = num_heads * head_dim
    shift = a[7] + head * head_dim
    keys = (length, a[8], shift, a[9], row_stride)
    values = (length, a[8], shift + a[9] * row_stride, a[9], row_stride)
    # Constants let the compiler unroll the loops of the usual heads.
    if head_dim == 64:
        _attend(query, pool, table, keys, values, scale, scores, output, num_groups, 64)
    elif head_dim == 128:
        _attend(query, pool, table, keys, values, scale, scores, output, num_groups, 128)
    else:
        _attend(query, pool, table, keys, values, scale, scores, output, num_groups, head_dim)


@_item
def _store_item(a, item):
    """Write keys and values of some tokens to their pages.

    keys, values, their row stride, pool, the layer's shift, block stride, block size, blocks int32
    [T], offsets int32 [T], T, width (kv heads * head_dim).
    """
    pool, blocks, offsets = float_pointer(a[7]), int32_pointer(a[11]), int32_pointer(a[12])
    width = a[14]
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, a[13])):
        at = blocks[token] * a[9] + a[8] + offsets[token] * width
        key = float_pointer(a[4] + 4 * token * a[6])
        value = float_pointer(a[5] + 4 * token * a[6])
        for lane in range(width):
            pool[at + lane] = key[lane]
            pool[at + a[10] * width + lane] = value[lane]


@_item
def _rotate_item(a, item):
    """Rotary positions in place, over the first heads of some rows.

    states, row stride, T, heads, head_dim, rotary_dim, cos, sin [T, rotary_dim].
    """
    num_heads, head_dim, half = a[7], a[8], a[9] // 2
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, a[6])):
        cos = float_pointer(a[10] + 8 * token * half)
        sin = float_pointer(a[11] + 8 * token * half)
        for head in range(num_heads):
            states = float_pointer(a[4] + 4 * (token * a[5] + head * head_dim))
            for lane in range(half):
                low, high = states[lane], states[lane + half]
                states[lane] = low * cos[lane] - high * sin[lane]
                states[lane + half] = high * cos[lane + half] + low * sin[lane + half]


@_item
def _norm_item(a, item):
    """`output` = RMS norm of `states` * weight, over some rows of `width`; in place is allowed.

    Row r lies at (r // together) * stride + (r % together) * width, in states and output alike.
    With `added` (its address not 0, dense) states += added comes first, and states keeps the sum.
    states, stride, together, added, number of rows, width, weight, epsilon float32 [1], output,
    its stride.
    """
    together, width = a[6], a[9]
    weight, epsilon = float_pointer(a[10]), float_pointer(a[11])[0]
    first = item * TOKENS_AT_ONCE
    for row in range(first, min(first + TOKENS_AT_ONCE, a[8])):
        group, inside = row // together, (row % together) * width
        states = float_pointer(a[4] + 4 * (group * a[5] + inside))
        output = float_pointer(a[12] + 4 * (group * a[13] + inside))
        if a[7] != 0:
            added = float_pointer(a[7] + 4 * row * width)
            for lane in range(width):
                states[lane] += added[lane]
        total = np.float32(0.0)
        for lane in range(width):
            total += states[lane] * states[lane]
        norm = np.float32(1.0) / np.sqrt(total / np.float32(width) + epsilon)
        for lane in range(width):
            output[lane] = weight[lane] * (states[lane] * norm)


@_item
def _silu_mul_item(a, item):
    """`output` [T, width] = silu(first half) * second half of `states` [T, 2 * width].

    states, T, width, output; items run over tokens and stretches of columns.
    """
    num_tokens, width = a[5], a[6]
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, num_tokens)):
        gate = float_pointer(a[4] + 8 * token * width)
        up = float_pointer(a[4] + 4 * (2 * token + 1) * width)
        output = float_pointer(a[7] + 4 * token * width)
        for lane in range(width):
            value = gate[lane]
            output[lane] = value / (np.float32(1.0) + _exp(-value)) * up[lane]


@_inner
def _four_by_four(w, width, x, output, stride):
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


@_inner
def _four_by_one(w, width, x, output):
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


@_inner
def _fetch(address, size_bytes):
    """Ask for memory a cache line at a time; past an array's end this does nothing."""
    for byte in range(0, size_bytes, 64):
        prefetch(address + byte)


@_item
def _linear_item(a, item):
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
            _four_by_four(w, width, x, output, num_columns)
        for token in range(tiled, num_tokens):
            x = float_pointer(a[6] + 4 * token * width)
            output = float_pointer(a[10] + 4 * (token * num_columns + column))
            _four_by_one(w, width, x, output)
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


@_item
def _do_item(a, item):
    opcode = a[3]
    if opcode == LINEAR:
        _linear_item(a, item)
    elif opcode == NORM:
        _norm_item(a, item)
    elif opcode == ROTATE:
        _rotate_item(a, item)
    elif opcode == STORE:
        _store_item(a, item)
    elif opcode == ATTEND:
        _attend_item(a, item)
    elif opcode == BY_ADDRESS:
        call_item(a[4], a, item)
    else:
        _silu_mul_item(a, item)


@cfunc(types.void(types.CPointer(types.int64)), cache=True, error_model="numpy")
def run_program(arguments):
    """What each thread of a team does: `arguments` are the table's address and number of calls."""
    for index in range(arguments[1]):
        address = arguments[0] + 8 * CALL_WIDTH * index
        a, done = int64_pointer(address), int64_pointer(address + 8)
        num_items = a[2]
        item = count_up(a)
        while item < num_items:
            _do_item(a, item)
            count_up(done)
            item = count_up(a)
        spins = 0
        while read_now(done) < num_items:
            spins += 1
            # Whoever has the last items may be waiting for this core.
            if spins > _SPINS:
                _sched_yield()
