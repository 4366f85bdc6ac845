"""The CPU kernels of 8-bit KV caches: int8 or fp8 numbers and their scales, used where they lie.

What is stored is that of `daemon.engine.kv.eight_bit`, bit by bit. A block's numbers of a layer lie
as [keys or values, block size, kv heads, head_dim], its scales as [keys or values, kv heads, block
size], so that one head's are side by side. The stride of blocks is in bytes.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np

from daemon.engine.cpu.numeric import TOKENS_AT_ONCE, capped, exactly, exp, inner, item
from daemon.engine.cpu.team import (
    bits_of_float,
    float_of_bits,
    float_pointer,
    int8_pointer,
    int32_pointer,
)
from daemon.engine.kv.eight_bit import FP8, INT8, LARGEST, SMALLEST_SCALE

_INT8_LARGEST, _FP8_LARGEST = np.float32(LARGEST[INT8]), np.float32(LARGEST[FP8])
_SMALLEST_SCALE = np.float32(SMALLEST_SCALE)

_NO_SINK = np.float32(-3e38)
"""Below every score, and finite: the loops are compiled as if nothing was infinite."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
"""The bits of a float32's magnitude, and the magnitude from which on it is no finite number."""

_TO_INTEGERS = np.float32(1.5 * 2.0**23)
"""Added and taken away again, it rounds a small float32 to an integer, halves to even."""

# e4m3 has four bits of exponent, 7 of which stand for 2 ** 0, and three of mantissa; below
# 2 ** -6 its numbers are multiples of 2 ** -9.
_FP8_EXPONENT = np.int32((127 - 7) << 23)
_FP8_BITS = np.int32(0x87F00000 - 2**32)
_FP8_UNBIASED = np.float32(2.0**120)
_FP8_NORMAL = np.float32(2.0**-6)
_FP8_NAN = np.int8(0x7F)
_TO_STEPS = np.float32(2.0**14)
"""Added, it rounds a float32 below 2 ** -6 to those multiples, which become its last bits."""


@inner
def _to_fp8(ratio):
    """The byte of e4m3 nearest to a number of at most 448, halves to even; as an int32."""
    bits = bits_of_float(ratio)
    magnitude = np.int32(bits & _MAGNITUDE)
    size = float_of_bits(magnitude)
    half = np.int32(np.int32(0x7FFFF) + (np.int32(magnitude >> 20) & np.int32(1)))
    normal = np.int32(np.int32(magnitude + half - _FP8_EXPONENT) >> 20)
    small = np.int32(bits_of_float(size + _TO_STEPS) - bits_of_float(_TO_STEPS))
    return np.int32((small if size < _FP8_NORMAL else normal) | (np.int32(bits >> 24) & -128))


@exactly
def _quantise(states, bits, stored, width, fp8):
    """Store `width` numbers, given as float32 and as their bits; returns their scale."""
    largest = np.int32(0)
    for lane in range(width):
        largest = max(largest, np.int32(bits[lane] & _MAGNITUDE))
    if largest >= _INFINITY:
        for lane in range(width):
            stored[lane] = _FP8_NAN if fp8 else np.int8(0)
        return np.float32(np.nan)
    scale = float_of_bits(largest) / (_FP8_LARGEST if fp8 else _INT8_LARGEST)
    scale = max(scale, _SMALLEST_SCALE)
    if fp8:
        for lane in range(width):
            stored[lane] = np.int8(_to_fp8(states[lane] / scale))
    else:
        for lane in range(width):
            ratio = (states[lane] / scale + _TO_INTEGERS) - _TO_INTEGERS
            stored[lane] = np.int8(np.int32(ratio))
    return scale


@item
def store_8bit_item(a, item, fp8):
    """Write keys and values of some tokens to their pages.

    keys, values, their row stride, numbers, the layer's shift, block stride, block size, blocks
    int32 [T], offsets int32 [T], T, kv heads, head_dim, scales of the layer.
    """
    blocks, offsets = int32_pointer(a[11]), int32_pointer(a[12])
    block_size, num_heads, head_dim = a[10], a[14], a[15]
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, a[13])):
        block, offset = blocks[token] * a[9], np.int64(offsets[token])
        for part in range(2):
            row = part * block_size + offset
            stored = a[7] + block + a[8] + row * num_heads * head_dim
            scales = float_pointer(a[16] + block)
            states = a[4 + part] + 4 * token * a[6]
            for head in range(num_heads):
                address = states + 4 * head * head_dim
                values, bits = float_pointer(address), int32_pointer(address)
                numbers = int8_pointer(stored + head * head_dim)
                place = (part * num_heads + head) * block_size + offset
                scales[place] = _quantise(values, bits, numbers, head_dim, fp8)


@item
def _widen_four(address, some, stride, rows, width, fp8):
    """`some` rows of up to four as float32 `rows` [4, width], without scales; zeros behind them."""
    for row in range(some):
        numbers = int8_pointer(address + row * stride)
        if fp8:
            for lane in range(width):
                # The exponent is a float32's but for its bias; that holds below 2 ** -6 as well.
                bits = np.int32(np.int32(np.int32(numbers[lane]) << 20) & _FP8_BITS)
                rows[row * width + lane] = float_of_bits(bits) * _FP8_UNBIASED
        else:
            for lane in range(width):
                rows[row * width + lane] = np.float32(numbers[lane])
    for lane in range(some * width, 4 * width):
        rows[lane] = np.float32(0.0)


@inner
def _multiply(query, rows, products, stride, groups, width):
    for group in range(groups):
        s0 = s1 = s2 = s3 = np.float32(0.0)
        for lane in range(width):
            x = query[group * width + lane]
            s0 += x * rows[lane]
            s1 += x * rows[width + lane]
            s2 += x * rows[2 * width + lane]
            s3 += x * rows[3 * width + lane]
        products[group * stride] = s0
        products[group * stride + 1] = s1
        products[group * stride + 2] = s2
        products[group * stride + 3] = s3


@item
def _multiply_four(query, rows, products, stride, groups, width):
    """`products` [groups, 4] of queries [groups, width] with four rows."""
    # Constants let the compiler unroll the loops of the usual heads.
    if width == 64:
        _multiply(query, rows, products, stride, groups, 64)
    elif width == 128:
        _multiply(query, rows, products, stride, groups, 128)
    else:
        _multiply(query, rows, products, stride, groups, width)


@inner
def _add(output, rows, weights, stride, groups, width):
    for group in range(groups):
        w0, w1 = weights[group * stride], weights[group * stride + 1]
        w2, w3 = weights[group * stride + 2], weights[group * stride + 3]
        for lane in range(width):
            total = w0 * rows[lane] + w1 * rows[width + lane]
            total += w2 * rows[2 * width + lane] + w3 * rows[3 * width + lane]
            output[group * width + lane] += total


@item
def _add_four(output, rows, weights, stride, groups, width):
    """Four rows times `weights` [groups, 4], added to `output` [groups, width]."""
    if width == 64:
        _add(output, rows, weights, stride, groups, 64)
    elif width == 128:
        _add(output, rows, weights, stride, groups, 128)
    else:
        _add(output, rows, weights, stride, groups, width)


@item
def _gather(table, first, length, block_size, stride, address, scales):
    """One head's scales of a sequence from `first` on, side by side; whether all are numbers."""
    largest = np.int32(0)
    for begin in range(first - first % block_size, length, block_size):
        block = address + table[begin // block_size] * stride
        floats, bits = float_pointer(block), int32_pointer(block)
        for offset in range(max(first - begin, 0), min(block_size, length - begin)):
            scales[begin + offset - first] = floats[offset]
            largest = max(largest, np.int32(bits[offset] & _MAGNITUDE))
    return largest <= _INFINITY


@item
def _softmax(scores, length, rule, sink, key_scales, value_scales):
    """In place of products with stored keys: weights for stored values, and zeros behind them.

    `rule`: scale and cap; `sink`: a score more, without a value, or `_NO_SINK`.
    """
    scale, cap = rule
    most = sink
    for position in range(length):
        scores[position] = capped(scores[position] * key_scales[position], scale, cap)
        most = max(most, scores[position])
    total = exp(sink - most) if sink > _NO_SINK else np.float32(0.0)
    for position in range(length):
        weight = exp(scores[position] - most)
        scores[position] = weight
        total += weight
    norm = np.float32(1.0) / total
    for position in range(length):
        scores[position] *= norm * value_scales[position]
    for position in range(length, length + 3):
        scores[position] = np.float32(0.0)


@item
def _attend(a, item, fp8, scratch):
    """`attend_8bit_item`, with memory for what it computes on the way."""
    block_size, num_heads, num_groups, width = a[9], a[14], a[15], a[16]
    head, row = divmod(item, a[2] // num_heads)  # as in `kernels`
    token, length = np.int64(int32_pointer(a[12])[row]), np.int64(int32_pointer(a[13])[row])
    first = max(length - a[20], 0) if a[20] else np.int64(0)
    count = length - first
    table = int32_pointer(a[10] + 4 * row * a[11])
    query = float_pointer(a[4] + 4 * (token * a[5] + head * num_groups * width))
    output = float_pointer(a[18] + 4 * (token * num_heads + head) * num_groups * width)
    own = np.int64(scratch.ctypes.data)
    rows, own = float_pointer(own), own + 16 * width
    key_scales, value_scales = float_pointer(own), float_pointer(own + 4 * count)
    own += 8 * count
    scales = a[19] + 4 * head * block_size
    fine = _gather(table, first, length, block_size, a[8], scales, key_scales)
    scales += 4 * num_heads * block_size
    fine &= _gather(table, first, length, block_size, a[8], scales, value_scales)
    for lane in range(num_groups * width):
        output[lane] = np.float32(0.0) if fine else np.float32(np.nan)
    if not fine:
        return
    stride, row_stride = count + 3, num_heads * width
    keys = a[6] + a[7] + head * width
    # Of four rows that a block does not fill, the next one overwrites what is too much.
    for begin in range(first - first % block_size, length, block_size):
        skipped = max(first - begin, 0)
        numbers = keys + table[begin // block_size] * a[8]
        here = min(block_size, length - begin)
        for offset in range(skipped, here, 4):
            some, at = min(4, here - offset), numbers + offset * row_stride
            _widen_four(at, some, row_stride, rows, width, fp8)
            products = float_pointer(own + 4 * (begin + offset - first))
            _multiply_four(query, rows, products, stride, num_groups, width)
    rule = (float_pointer(a[17])[0], float_pointer(a[17])[1])
    for group in range(num_groups):
        scores = float_pointer(own + 4 * group * stride)
        sink = _NO_SINK
        if a[21]:
            sink = float_pointer(a[21])[head * num_groups + group]
        _softmax(scores, count, rule, sink, key_scales, value_scales)
    values = keys + block_size * row_stride
    for begin in range(first - first % block_size, length, block_size):
        skipped = max(first - begin, 0)
        numbers = values + table[begin // block_size] * a[8]
        here = min(block_size, length - begin)
        for offset in range(skipped, here, 4):
            some, at = min(4, here - offset), numbers + offset * row_stride
            _widen_four(at, some, row_stride, rows, width, fp8)
            weights = float_pointer(own + 4 * (begin + offset - first))
            _add_four(output, rows, weights, stride, num_groups, width)


@item
def attend_8bit_item(a, item, fp8):
    """Attention of one row of one token, and of one key head with the query heads that share it.

    query, its row stride, numbers, the layer's shift, block stride, block size, tables int32
    [B, width], width, tokens int32 [B] (rows of query and output), lens int32 [B], kv heads,
    groups, head_dim, scale and cap float32 [2], output [T, kv heads * groups * head_dim], scales of
    the layer, window, sinks float32 [kv heads * groups] or 0.
    """
    length = np.int64(int32_pointer(a[13])[item % (a[2] // a[14])])
    count = min(length, a[20]) if a[20] else length
    size = 4 * a[16] + 2 * count + a[15] * (count + 3)
    _attend(a, item, fp8, np.empty(size, np.float32))
