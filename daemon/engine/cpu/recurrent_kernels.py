"""The CPU kernels of recurrent layers: states are read and written in their pages, in float32.

As in `kernels`, a kernel does one item of a call, whose arguments `a` are integers; as in
`quantised_kernels`, each is compiled by itself when it is first asked for. An item walks through
all tokens of one row with a part of a layer's state, which the nearest cache holds meanwhile.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from functools import cache

import numpy as np
from numba import njit

from daemon.engine.cpu.dots import stack
from daemon.engine.cpu.numeric import exp
from daemon.engine.cpu.quantised_kernels import ITEM
from daemon.engine.cpu.recurrent_rows import (
    read_columns,
    scan_row,
    scan_row_by_rates,
    write_columns,
)
from daemon.engine.cpu.team import float_pointer, int32_pointer, int64_pointer

CHANNELS_AT_ONCE = 256
"""Most channels of a convolution, or of a scan by channels, in one item."""

_CHANNELS_BYTES = 4 * CHANNELS_AT_ONCE
_EPSILON = np.float32(1e-6)
_inner = njit(cache=True, error_model="numpy", inline="always")


@_inner
def _place(rows, row, page, offset):
    """The address of a row's state.

    `rows` is the address of int64: pages int32 [B, S], S, starts int32 [B], first tokens int32 [B],
    counts int32 [B], pool, bytes of a page.
    """
    table = int64_pointer(rows)
    block = np.int64(int32_pointer(table[0])[row * table[1] + page])
    return table[5] + block * table[6] + offset


@_inner
def _tokens(rows, row):
    """The first token of a row, their number, and whether its sequence begins with them."""
    table = int64_pointer(rows)
    first = np.int64(int32_pointer(table[3])[row])
    count = np.int64(int32_pointer(table[4])[row])
    return first, count, int32_pointer(table[2])[row] == 0


@_inner
def _clear(address, count):
    numbers = float_pointer(address)
    for index in range(count):
        numbers[index] = np.float32(0.0)


@cache
def convolved(taps, activated):
    """The kernel of a convolution over the last `taps` tokens, then silu where `activated`.

    rows, stretches of channels int64 [N, 5] (first, count, page, offset, bytes of a token), N,
    inputs, their stride, weight [C, taps], bias [C] or 0, output [T, C], C.
    """
    before, source_bytes = taps - 1, 8 * taps

    @ITEM
    def item(a, number):
        row, at = divmod(number, a[7])
        stretch = int64_pointer(a[6] + 40 * at)
        channel, count, token_bytes = stretch[0], stretch[1], stretch[4]
        state = _place(a[5], row, stretch[2], stretch[3])
        first, num_tokens, begins = _tokens(a[5], row)
        if num_tokens == 0:
            return
        zeros = stack(_CHANNELS_BYTES)
        sources = int64_pointer(stack(source_bytes))
        _clear(zeros, count)
        weight = float_pointer(a[10] + 4 * taps * channel)
        inputs, stride = a[8] + 4 * channel, 4 * a[9]
        for index in range(num_tokens):
            for tap in range(taps):
                position = index - before + tap
                if position >= 0:
                    sources[tap] = inputs + (first + position) * stride
                elif begins:
                    sources[tap] = zeros
                else:
                    sources[tap] = state + (before + position) * token_bytes
            output = float_pointer(a[12] + 4 * ((first + index) * a[13] + channel))
            for lane in range(count):
                output[lane] = np.float32(0.0)
            if a[11] != 0:
                bias = float_pointer(a[11] + 4 * channel)
                for lane in range(count):
                    output[lane] = bias[lane]
            for tap in range(taps):
                source = float_pointer(sources[tap])
                for lane in range(count):
                    output[lane] += weight[lane * taps + tap] * source[lane]
            if activated:
                for lane in range(count):
                    value = output[lane]
                    output[lane] = value / (np.float32(1.0) + exp(-value))
        for tap in range(before):
            position = num_tokens - before + tap
            kept = float_pointer(state + tap * token_bytes)
            source = zeros
            if position >= 0:
                source = inputs + (first + position) * stride
            elif not begins:
                source = state + (before + position) * token_bytes
            for lane in range(count):
                kept[lane] = float_pointer(source)[lane]

    return item


@_inner
def _unit(vector, count, scale, output):
    """`vector` of length `scale`, to `output`."""
    total = np.float32(0.0)
    for index in range(count):
        total += vector[index] * vector[index]
    factor = scale / np.sqrt(total + _EPSILON)
    for index in range(count):
        output[index] = vector[index] * factor


@_inner
def _decay(rates, at, apart, count, output):
    """The factors of a head's channels at a token, from logarithms of each or, not `apart`, all."""
    logarithms = float_pointer(rates)
    if apart != 0:
        for index in range(count):
            output[index] = exp(logarithms[at * count + index])
    else:
        for index in range(count):
            output[index] = exp(logarithms[at])


@cache
def delta_rule(columns, keys):
    """The kernel of the gated delta rule with dk = `keys`, over `columns` of a head's values: see
    `delta_rule`.

    rows, places of heads' states int64 [H, 2] (page, offset), H, query, key, value, their strides,
    decay [T, H] or [T, H, dk], whether channels decay apart, beta [T, H], dv, heads of keys, output
    [T, H, dv].
    """
    keys_bytes, sum_bytes, added_bytes = 4 * keys, 8 * columns, 4 * columns

    @ITEM
    def item(a, number):
        num_blocks = a[17] // columns
        unit, block = divmod(number, num_blocks)
        row, head = divmod(unit, a[7])
        values = a[17]
        place = int64_pointer(a[6] + 16 * head)
        stride = 4 * values
        state = _place(a[5], row, place[0], place[1]) + 4 * columns * block
        first, num_tokens, begins = _tokens(a[5], row)
        if num_tokens == 0:
            return
        if begins:
            for index in range(keys):
                _clear(state + index * stride, columns)
        of_keys = head // (a[7] // a[18])
        query_at, key_at, decay_at = stack(keys_bytes), stack(keys_bytes), stack(keys_bytes)
        asked_at, known_at = stack(keys_bytes), stack(keys_bytes)
        sums_at, added_at = stack(sum_bytes), stack(added_bytes)
        query, key, decay = float_pointer(query_at), float_pointer(key_at), float_pointer(decay_at)
        asked, known = float_pointer(asked_at), float_pointer(known_at)
        sums, added = float_pointer(sums_at), float_pointer(added_at)
        scale = np.float32(1.0) / np.sqrt(np.float32(keys))
        for token in range(first, first + num_tokens):
            _unit(float_pointer(a[8] + 4 * (token * a[11] + of_keys * keys)), keys, scale, query)
            of_one = float_pointer(a[9] + 4 * (token * a[12] + of_keys * keys))
            _unit(of_one, keys, np.float32(1.0), key)
            at = token * a[7] + head
            _decay(a[14], at, a[15], keys, decay)
            overlap = np.float32(0.0)
            for index in range(keys):
                known[index] = key[index] * decay[index]
                asked[index] = query[index] * decay[index]
                overlap += key[index] * query[index]
            read_columns(columns, state, stride, known_at, asked_at, keys, sums_at)
            beta = float_pointer(a[16])[at]
            value = float_pointer(a[10] + 4 * (token * a[13] + head * values + columns * block))
            output = float_pointer(a[19] + 4 * (at * values + columns * block))
            for lane in range(columns):
                added[lane] = (value[lane] - sums[lane]) * beta
                output[lane] = sums[columns + lane] + overlap * added[lane]
            write_columns(columns, state, stride, decay_at, key_at, added_at, keys)

    return item


@cache
def chunk_scan(lanes):
    """The kernel of Mamba 2's scan, of one head, in vectors of `lanes`.

    rows, places of heads' states int64 [H, 2] (page, offset), H, inputs, their stride, steps
    [T, H], rates [H], write, read, their strides, groups, direct [H] or 0, P, N, output [T, H, P].
    """

    @ITEM
    def item(a, number):
        row, head = divmod(number, a[7])
        place = int64_pointer(a[6] + 16 * head)
        state = _place(a[5], row, place[0], place[1])
        first, num_tokens, begins = _tokens(a[5], row)
        if num_tokens == 0:
            return
        num_inputs, size = a[18], a[19]
        if begins:
            _clear(state, num_inputs * size)
        group = head // (a[7] // a[16])
        rate = float_pointer(a[11])[head]
        for token in range(first, first + num_tokens):
            inputs = float_pointer(a[8] + 4 * (token * a[9] + head * num_inputs))
            write = a[12] + 4 * (token * a[14] + group * size)
            read = a[13] + 4 * (token * a[15] + group * size)
            output = float_pointer(a[20] + 4 * (token * a[7] + head) * num_inputs)
            step = float_pointer(a[10])[token * a[7] + head]
            decay = exp(step * rate)
            for index in range(num_inputs):
                at = state + 4 * index * size
                taken = step * inputs[index]
                output[index] = scan_row(lanes, at, size // lanes, decay, taken, write, read)
            if a[17] != 0:
                direct = float_pointer(a[17])[head]
                for index in range(num_inputs):
                    output[index] += direct * inputs[index]

    return item


@cache
def selective_scan(lanes):
    """The kernel of Mamba 1's scan, over a stretch of channels, in vectors of `lanes`.

    rows, stretches of channels int64 [K, 5] (first, count, page, offset), K, inputs, their stride,
    steps [T, C], their stride, rates [C, N], write, read, their strides, direct [C] or 0, N, output
    [T, C], C.
    """

    @ITEM
    def item(a, number):
        row, at = divmod(number, a[7])
        stretch = int64_pointer(a[6] + 40 * at)
        channel, count, size = stretch[0], stretch[1], a[18]
        state = _place(a[5], row, stretch[2], stretch[3])
        first, num_tokens, begins = _tokens(a[5], row)
        if num_tokens == 0:
            return
        if begins:
            _clear(state, count * size)
        for token in range(first, first + num_tokens):
            inputs = float_pointer(a[8] + 4 * (token * a[9] + channel))
            steps = float_pointer(a[10] + 4 * (token * a[11] + channel))
            write, read = a[13] + 4 * token * a[15], a[14] + 4 * token * a[16]
            output = float_pointer(a[19] + 4 * (token * a[20] + channel))
            for index in range(count):
                step = steps[index]
                rates = a[12] + 4 * (channel + index) * size
                own = state + 4 * index * size
                taken = step * inputs[index]
                output[index] = scan_row_by_rates(
                    lanes, own, size // lanes, rates, step, taken, write, read
                )
            if a[17] != 0:
                direct = float_pointer(a[17] + 4 * channel)
                for index in range(count):
                    output[index] += direct[index] * inputs[index]

    return item
