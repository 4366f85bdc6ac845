"""The CPU kernels of 8-bit KV caches: int8 or fp8 numbers and their scales, used where they lie.

What is stored is that of `daemon.engine.quantise`, bit by bit. A block's numbers of a layer lie
as [keys or values, block size, kv heads, head_dim], its scales as [keys or values, kv heads, block
size], so that one head's are side by side. The stride of blocks is in bytes.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np

from daemon.engine.cpu.numeric import TOKENS_AT_ONCE, exactly, exp, inner, item
from daemon.engine.cpu.team import (
    bits_of_float,
    float_of_bits,
    float_pointer,
    int8_pointer,
    int32_pointer,
)
from daemon.engine.quantise import FP8, INT8, LARGEST, SMALLEST_SCALE

_INT8_LARGEST, _FP8_LARGEST = np.float32(LARGEST[INT8]), np.float32(LARGEST[FP8])
_SMALLEST_SCALE = np.float32(SMALLEST_SCALE)

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
"""The bits of a float32's magnitude, and the magnitude from which on it is no finite number."""

_TO_INTEGERS = np.float32(1.5 * 2.0**23)
"""Added and taken away again, it rounds a small float32 to an integer, halves to even."""

# e4m3 has four bits of exponent, 7 of which stand for 2 ** 0, and three of mantissa; below
# 2 ** -6 its numbers are multiples of 2 ** -9.
_FP8_EXPONENT = np.int32((127 - 7) << 23)
_FP8_NORMAL = np.float32(2.0**-6)
_FP8_STEP = np.float32(2.0**-9)
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


@inner
def _widen(numbers, row, width, fp8):
    """8-bit numbers as float32, without their scale."""
    if fp8:
        for lane in range(width):
            bits = np.int32(numbers[lane])
            magnitude = np.int32(bits & np.int32(0x7F))
            normal = float_of_bits(np.int32(np.int32(magnitude << 20) + _FP8_EXPONENT))
            small = np.float32(magnitude) * _FP8_STEP
            size = small if magnitude < 8 else normal
            row[lane] = -size if bits < 0 else size
    else:
        for lane in range(width):
            row[lane] = np.float32(numbers[lane])


@inner
def _widen_four(numbers, some, stride, rows, head_dim, fp8):
    """`some` rows of up to four, the last of them repeated, into `rows` [4, head_dim]."""
    for one in range(4):
        at = min(one, some - 1) * stride
        _widen(int8_pointer(numbers + at), rows[one], head_dim, fp8)


@inner
def _scores(query, table, layout, scale, scores, rows, num_groups, head_dim, fp8):
    """Scores [groups, length] of one sequence's queries over one key head.

    What lies behind `length` is overwritten. Returns the largest scale's bits: NaN's are larger
    than any number's.
    """
    length, block_size, block_stride, numbers, scales, row_stride = layout
    most = np.int32(0)
    for first in range(0, length, block_size):
        block = table[first // block_size] * block_stride
        floats, bits = float_pointer(scales + block), int32_pointer(scales + block)
        count = min(block_size, length - first)
        for offset in range(count):
            most = max(most, np.int32(bits[offset] & _MAGNITUDE))
        for offset in range(0, count, 4):
            some = min(4, count - offset)
            at = numbers + block + offset * row_stride
            _widen_four(at, some, row_stride, rows, head_dim, fp8)
            for group in range(num_groups):
                s0 = s1 = s2 = s3 = np.float32(0.0)
                for lane in range(head_dim):
                    x = query[group * head_dim + lane]
                    s0 += x * rows[0, lane]
                    s1 += x * rows[1, lane]
                    s2 += x * rows[2, lane]
                    s3 += x * rows[3, lane]
                # Of a tile that is not full the next one, or nobody, overwrites the rest.
                position = first + offset
                scores[group, position] = s0 * (scale * floats[offset])
                scores[group, position + 1] = s1 * (scale * floats[offset + min(1, some - 1)])
                scores[group, position + 2] = s2 * (scale * floats[offset + min(2, some - 1)])
                scores[group, position + 3] = s3 * (scale * floats[offset + some - 1])
    return most


@inner
def _softmax(scores, length, num_groups):
    """Weights [groups, length] in place of scores; zeros behind them."""
    for group in range(num_groups):
        most = scores[group, 0]
        for position in range(length):
            most = max(most, scores[group, position])
        total = np.float32(0.0)
        for position in range(length):
            weight = exp(scores[group, position] - most)
            scores[group, position] = weight
            total += weight
        norm = np.float32(1.0) / total
        for position in range(length):
            scores[group, position] *= norm


@inner
def _weigh(table, layout, scores, rows, output, num_groups, head_dim, fp8):
    """The values weighed by `scores` into `output` [groups, head_dim]; returns as `_scores`."""
    length, block_size, block_stride, numbers, scales, row_stride = layout
    most = np.int32(0)
    for lane in range(num_groups * head_dim):
        output[lane] = np.float32(0.0)
    for first in range(0, length, block_size):
        block = table[first // block_size] * block_stride
        floats, bits = float_pointer(scales + block), int32_pointer(scales + block)
        count = min(block_size, length - first)
        for offset in range(count):
            most = max(most, np.int32(bits[offset] & _MAGNITUDE))
        for offset in range(0, count, 4):
            some = min(4, count - offset)
            at = numbers + block + offset * row_stride
            _widen_four(at, some, row_stride, rows, head_dim, fp8)
            for group in range(num_groups):
                position = first + offset
                w0 = scores[group, position] * floats[offset]
                w1 = w2 = w3 = np.float32(0.0)
                if some > 1:
                    w1 = scores[group, position + 1] * floats[offset + 1]
                if some > 2:
                    w2 = scores[group, position + 2] * floats[offset + 2]
                if some > 3:
                    w3 = scores[group, position + 3] * floats[offset + 3]
                for lane in range(head_dim):
                    total = w0 * rows[0, lane] + w1 * rows[1, lane]
                    total += w2 * rows[2, lane] + w3 * rows[3, lane]
                    output[group * head_dim + lane] += total
    return most


@inner
def _attend(query, table, keys, values, scale, output, num_groups, head_dim, fp8):
    length = keys[0]
    scores = np.empty((num_groups, length + 3), np.float32)
    rows = np.empty((4, head_dim), np.float32)
    most = _scores(query, table, keys, scale, scores, rows, num_groups, head_dim, fp8)
    _softmax(scores, length, num_groups)
    other = _weigh(table, values, scores, rows, output, num_groups, head_dim, fp8)
    if max(most, other) > _INFINITY:
        for lane in range(num_groups * head_dim):
            output[lane] = np.nan


@item
def attend_8bit_item(a, item, fp8):
    """Attention of one row of one token, and of one key head with the query heads that share it.

    query, its row stride, numbers, the layer's shift, block stride, block size, tables int32
    [B, width], width, tokens int32 [B] (rows of query and output), lens int32 [B], kv heads,
    groups, head_dim, scale float32 [1], output [T, kv heads * groups * head_dim], scales of the
    layer.
    """
    block_size, num_heads, num_groups, head_dim = a[9], a[14], a[15], a[16]
    row, head = item // num_heads, item % num_heads
    scale = float_pointer(a[17])[0]
    token = np.int64(int32_pointer(a[12])[row])
    length = np.int64(int32_pointer(a[13])[row])
    width = num_groups * head_dim
    query = float_pointer(a[4] + 4 * (token * a[5] + head * width))
    output = float_pointer(a[18] + 4 * (token * num_heads + head) * width)
    table = int32_pointer(a[10] + 4 * row * a[11])
    row_stride = num_heads * head_dim
    numbers = a[6] + a[7] + head * head_dim
    scales = a[19] + 4 * head * block_size
    keys = (length, block_size, a[8], numbers, scales, row_stride)
    numbers += block_size * row_stride
    scales += 4 * num_heads * block_size
    values = (length, block_size, a[8], numbers, scales, row_stride)
    # Constants let the compiler unroll the loops of the usual heads.
    if head_dim == 64:
        _attend(query, table, keys, values, scale, output, num_groups, 64, fp8)
    elif head_dim == 128:
        _attend(query, table, keys, values, scale, output, num_groups, 128, fp8)
    else:
        _attend(query, table, keys, values, scale, output, num_groups, head_dim, fp8)
