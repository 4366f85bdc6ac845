"""The CPU kernels around mixers and gated heads: what lies between products and states.

As in `quantised_kernels`, each is compiled by itself when it is first asked for, and does one item
of a call, whose arguments `a` are integers. `daemon.engine.cpu.mixer_calls` writes the calls.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from functools import cache

import numpy as np
from numba import njit

from daemon.engine.cpu.numeric import exp
from daemon.engine.cpu.quantised_kernels import ITEM
from daemon.engine.cpu.team import float_pointer, int64_pointer

_LINEAR_FROM = np.float32(20.0)
"""From here on log(1 + e ** x) is x, as torch computes it."""

NUMBERS_AT_ONCE = 256
"""Most steps of time in one item."""

_inner = njit(cache=True, error_model="numpy", inline="always")


@_inner
def _sigmoid(value):
    return np.float32(1.0) / (np.float32(1.0) + exp(-value))


@cache
def steps():
    """The kernel of what heads make of two logits each: a decay's logarithm, and beta. Of a token.

    logits (of betas, then of steps), their stride, H, rates [H], step bias [H], decay [T, H], beta
    [T, H].
    """

    @ITEM
    def item(a, token):
        heads = a[7]
        logits = float_pointer(a[5] + 4 * token * a[6])
        rates, bias = float_pointer(a[8]), float_pointer(a[9])
        decay = float_pointer(a[10] + 4 * token * heads)
        beta = float_pointer(a[11] + 4 * token * heads)
        for head in range(heads):
            beta[head] = np.float32(1.0 / (1.0 + np.exp(-np.float64(logits[head]))))
            step = logits[heads + head] + bias[head]
            if step <= _LINEAR_FROM:
                step = np.float32(np.log1p(np.exp(np.float64(step))))
            decay[head] = rates[head] * step

    return item


@cache
def channel_decays():
    """The kernel of what channels make of a logit each, a decay's logarithm, and a head of one
    more, beta. Of a token's head.

    logits [T, H * D], H, D, rates [H], step bias [H * D], logits of betas, their stride, decay
    [T, H, D], beta [T, H].
    """

    @ITEM
    def item(a, number):
        token, head = divmod(number, a[6])
        size = a[7]
        logits = float_pointer(a[5] + 4 * number * size)
        decay = float_pointer(a[12] + 4 * number * size)
        bias = float_pointer(a[9] + 4 * head * size)
        rate = float_pointer(a[8])[head]
        for index in range(size):
            step = logits[index] + bias[index]
            if step <= _LINEAR_FROM:
                step = np.float32(np.log1p(np.exp(np.float64(step))))
            decay[index] = rate * step
        logit = np.float64(float_pointer(a[10] + 4 * token * a[11])[head])
        float_pointer(a[13])[number] = np.float32(1.0 / (1.0 + np.exp(-logit)))

    return item


@cache
def ordered():
    """The kernel that puts a token's numbers into another order. Of a token.

    source, its stride, order int64 [N], N, output [T, N].
    """

    @ITEM
    def item(a, token):
        source = float_pointer(a[5] + 4 * token * a[6])
        order = int64_pointer(a[7])
        output = float_pointer(a[9] + 4 * token * a[8])
        for index in range(a[8]):
            output[index] = source[order[index]]

    return item


@cache
def normed_and_gated(sigmoid):
    """The kernel of an RMS norm of a head's values, times silu of their gates, or their `sigmoid`.
    Of a token's head.

    values [T, H, D], H, D, weight [D], epsilon, gates, their stride, output [T, H, D].
    """

    @ITEM
    def item(a, number):
        token, head = divmod(number, a[6])
        size = a[7]
        values = float_pointer(a[5] + 4 * number * size)
        output = float_pointer(a[12] + 4 * number * size)
        gates = float_pointer(a[10] + 4 * (token * a[11] + head * size))
        weight = float_pointer(a[8])
        total = np.float64(0.0)
        for index in range(size):
            total += np.float64(values[index] * values[index])
        mean = np.float32(total / size)
        factor = np.float32(1.0) / np.sqrt(mean + float_pointer(a[9])[0])
        for index in range(size):
            normed = weight[index] * (values[index] * factor)
            opened = _sigmoid(gates[index])
            if not sigmoid:
                opened *= gates[index]
            output[index] = normed * opened

    return item


@cache
def time_steps():
    """The kernel of Mamba's steps of time: log(1 + e ** x) within two limits. Of a part of a token,
    `NUMBERS_AT_ONCE` heads or channels.

    logits, their stride, H, bias [H], limits float32 [2], output [T, H].
    """

    @ITEM
    def item(a, number):
        heads = a[7]
        token, part = divmod(number, -(-heads // NUMBERS_AT_ONCE))
        logits = float_pointer(a[5] + 4 * token * a[6])
        bias, limits = float_pointer(a[8]), float_pointer(a[9])
        output = float_pointer(a[10] + 4 * token * heads)
        first = part * NUMBERS_AT_ONCE
        for head in range(first, min(first + NUMBERS_AT_ONCE, heads)):
            step = logits[head] + bias[head]
            if step <= _LINEAR_FROM:
                step = np.float32(np.log1p(np.exp(np.float64(step))))
            output[head] = min(max(step, limits[0]), limits[1])

    return item


@cache
def gated_and_normed():
    """The kernel of values times silu of their gates, then an RMS norm of each group of them. Of a
    token's group.

    values [T, G, D], G, D, weight [G, D], epsilon, gates, their stride, output [T, G, D].
    """

    @ITEM
    def item(a, number):
        token, group = divmod(number, a[6])
        size = a[7]
        values = float_pointer(a[5] + 4 * number * size)
        output = float_pointer(a[12] + 4 * number * size)
        gates = float_pointer(a[10] + 4 * (token * a[11] + group * size))
        weight = float_pointer(a[8] + 4 * group * size)
        total = np.float64(0.0)
        for index in range(size):
            opened = values[index] * (gates[index] * _sigmoid(gates[index]))
            output[index] = opened
            total += np.float64(opened * opened)
        mean = np.float32(total / size)
        factor = np.float32(1.0) / np.sqrt(mean + float_pointer(a[9])[0])
        for index in range(size):
            output[index] = weight[index] * (output[index] * factor)

    return item


@cache
def squared():
    """The kernel of the sum of a token's squares, in the place of its group; 0 in those of others.
    Of a token.

    values [T, N], N, squares [T, G], G, group.
    """

    @ITEM
    def item(a, token):
        values = float_pointer(a[5] + 4 * token * a[6])
        squares = float_pointer(a[7] + 4 * token * a[8])
        total = np.float64(0.0)
        for index in range(a[6]):
            total += np.float64(values[index] * values[index])
        for group in range(a[8]):
            squares[group] = np.float32(0.0)
        squares[a[9]] = np.float32(total)

    return item


@cache
def normed_by_squares():
    """The kernel of an RMS norm of a part of a group, whose squares are known, in place. Of a
    token.

    values [T, N], N, squares [T, G], G, group, numbers of a group, weight [N], epsilon.
    """

    @ITEM
    def item(a, token):
        values = float_pointer(a[5] + 4 * token * a[6])
        mean = np.float32(float_pointer(a[7] + 4 * token * a[8])[a[9]] / a[10])
        weight = float_pointer(a[11])
        factor = np.float32(1.0) / np.sqrt(mean + float_pointer(a[12])[0])
        for index in range(a[6]):
            values[index] = weight[index] * (values[index] * factor)

    return item


@cache
def multiplied():
    """The kernel of the product of numbers one by one. Of a token.

    left, its stride, right, its stride, N, output [T, N].
    """

    @ITEM
    def item(a, token):
        left = float_pointer(a[5] + 4 * token * a[6])
        right = float_pointer(a[7] + 4 * token * a[8])
        output = float_pointer(a[10] + 4 * token * a[9])
        for index in range(a[9]):
            output[index] = left[index] * right[index]

    return item


@cache
def opened():
    """The kernel of numbers times silu of their gates. Of a token.

    values, their stride, gates, their stride, N, output [T, N].
    """

    @ITEM
    def item(a, token):
        values = float_pointer(a[5] + 4 * token * a[6])
        gates = float_pointer(a[7] + 4 * token * a[8])
        output = float_pointer(a[10] + 4 * token * a[9])
        for index in range(a[9]):
            output[index] = values[index] * (gates[index] * _sigmoid(gates[index]))

    return item


@cache
def weighed():
    """The kernel that multiplies numbers by factors, in place. Of a token.

    states, their stride, factors, N.
    """

    @ITEM
    def item(a, token):
        states = float_pointer(a[5] + 4 * token * a[6])
        factors = float_pointer(a[7])
        for index in range(a[8]):
            states[index] *= factors[index]

    return item


@cache
def summed():
    """The kernel of the sum of numbers, each times a scale, in the first ones' place. Of a token.

    states [T, N], others [T, N], N, scales float32 [2].
    """

    @ITEM
    def item(a, token):
        states = float_pointer(a[5] + 4 * token * a[7])
        others = float_pointer(a[6] + 4 * token * a[7])
        scales = float_pointer(a[8])
        for index in range(a[7]):
            states[index] = scales[0] * states[index] + scales[1] * others[index]

    return item


@cache
def copied():
    """The kernel that copies numbers. Of a token.

    source, its stride, N, output [T, N].
    """

    @ITEM
    def item(a, token):
        source = float_pointer(a[5] + 4 * token * a[6])
        output = float_pointer(a[8] + 4 * token * a[7])
        for index in range(a[7]):
            output[index] = source[index]

    return item


@cache
def relu_squared():
    """The kernel of max(x, 0) ** 2. Of a token.

    states [T, N], N, output [T, N].
    """

    @ITEM
    def item(a, token):
        states = float_pointer(a[5] + 4 * token * a[6])
        output = float_pointer(a[7] + 4 * token * a[6])
        for index in range(a[6]):
            state = max(states[index], np.float32(0.0))
            output[index] = state * state

    return item


@cache
def parted():
    """The kernel that puts queries side by side, each of which a gate follows, and then what
    follows all of them. Of a token.

    source, its stride, H, D, numbers that follow, output, its stride.
    """

    @ITEM
    def item(a, token):
        heads, size = a[7], a[8]
        source = float_pointer(a[5] + 4 * token * a[6])
        output = float_pointer(a[10] + 4 * token * a[11])
        for head in range(heads):
            for index in range(size):
                output[head * size + index] = source[2 * head * size + index]
        for index in range(a[9]):
            output[heads * size + index] = source[2 * heads * size + index]

    return item


@cache
def gated():
    """The kernel that multiplies a head by the sigmoid of its gate, in place. Of a token's head.

    states [T, H, D], H, D, source of queries and gates, its stride.
    """

    @ITEM
    def item(a, number):
        token, head = divmod(number, a[6])
        size = a[7]
        states = float_pointer(a[5] + 4 * number * size)
        gates = float_pointer(a[8] + 4 * (token * a[9] + (2 * head + 1) * size))
        for index in range(size):
            states[index] *= _sigmoid(gates[index])

    return item
