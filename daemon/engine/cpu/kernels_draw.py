"""The CPU kernel that draws a row's token: temperature, top-k, top-p, min-p, and the draw.

What `daemon.engine.sampler` says of a draw holds here too: a filter is a cut, ties at it stay, and
a token depends on the row's logits, its rules and one uniform number alone. Weights are integers,
whose sums are the same in any order.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np

from daemon.engine.cpu.kernels_edit import append
from daemon.engine.cpu.numeric import exactly
from daemon.engine.cpu.numeric import exp as _exp
from daemon.engine.cpu.team import (
    bits_of_float,
    double_pointer,
    float_of_bits,
    float_pointer,
    int32_pointer,
)
from daemon.engine.draw_columns import FARTHEST, INVERSE, RULE_COLUMNS, TOP_K, TOP_P

BLOCK = 256
"""Columns whose weights are summed first."""

FEW = 512
"""So many columns are gathered before they are looked through."""

_STRETCH = 512
_INFINITY = 0x7F800000  # its bits as a float32; those of what is not a number are greater
_NEGATIVE_ZERO = -0x80000000
_ONE = np.float32(2.0**30)  # the weight of the best token
_FARTHEST = np.float32(22.0)  # beyond it a weight is 0
_HALVINGS = 10
"""Steps of an even search; then the bits are halved."""


@exactly
def _most(bits, first, end):
    """(the greatest of some float32, the greatest magnitude), as integers of the same order."""
    most, magnitude = _NEGATIVE_ZERO, 0
    for column in range(first, end):
        value = bits[column]
        key = value ^ ((value >> 31) & 0x7FFFFFFF)
        if value == _NEGATIVE_ZERO:
            key = 0
        most = max(most, key)
        magnitude = max(magnitude, value & 0x7FFFFFFF)
    return most, magnitude


@exactly
def _best(bits, values, width):
    """The first of the best logits; -1 where it is not a finite number."""
    best, magnitude, begin = _NEGATIVE_ZERO, 0, 0
    for first in range(0, width, _STRETCH):
        most, magnitude_here = _most(bits, first, min(first + _STRETCH, width))
        magnitude = max(magnitude, magnitude_here)
        if most > best:
            best, begin = most, first
    if magnitude > _INFINITY or best >= _INFINITY or best < -_INFINITY:
        return -1
    token = begin
    for column in range(begin, min(begin + _STRETCH, width)):
        if values[column] > values[token]:
            token = column
    return token


@exactly
def _halves(address, width):
    """Two times int32 [width], at an address: lanes read pointers faster than arrays."""
    return int32_pointer(address), int32_pointer(address + 4 * width)


@exactly
def _weigh(values, best, inverse, width, keys, weights):
    """How far below the best each logit lies, over the temperature, and its weight.

    Distances are kept as their bits, which as integers have their order; those of -0 would not.
    """
    for column in range(width):
        distance = (best - values[column]) * inverse
        keys[column] = max(bits_of_float(distance), np.int32(0))
        weights[column] = np.int32(_exp(-distance) * _ONE + np.float32(0.5))


@exactly
def _count(keys, width, cut):
    """How many columns lie within a cut."""
    total = np.int64(0)
    for first in range(0, width, _STRETCH):
        count = np.int32(0)
        for column in range(first, min(first + _STRETCH, width)):
            count = np.int32(count + np.int32(keys[column] <= cut))
        total += count
    return total


@exactly
def _mass(keys, weights, first, end, cut):
    """What some columns weigh, as far as they lie within a cut.

    Halves of weights are summed by themselves: 32 bits hold those of a stretch.
    """
    mass = np.int64(0)
    for begin in range(first, end, _STRETCH):
        low, high = np.int32(0), np.int32(0)
        for column in range(begin, min(begin + _STRETCH, end)):
            weight = np.int32(weights[column] if keys[column] <= cut else np.int32(0))
            low = np.int32(low + np.int32(weight & 0x7FFF))
            high = np.int32(high + np.int32(weight >> 15))
        mass += (np.int64(high) << 15) + np.int64(low)
    return mass


@exactly
def _measure(keys, weights, width, cut, weighed):
    """(how many columns lie within a cut, what they weigh, if that is asked for)."""
    mass = _mass(keys, weights, 0, width, cut) if weighed else np.int64(0)
    return _count(keys, width, cut), mass


@exactly
def _gather(keys, weights, width, low, high, near_keys, near_weights):
    """Gather the columns between two cuts; how many they are."""
    count = 0
    for column in range(width):
        if low < keys[column] and keys[column] <= high:
            near_keys[count] = keys[column]
            near_weights[count] = weights[column]
            count += 1
    return count


@exactly
def _nearest_cut(keys, weights, width, high, count_wanted, mass_wanted):
    """The nearest cut within which so many columns lie, or so much weight; at most `high`.

    Halved evenly first, then bit by bit among the few columns that are left between two cuts.
    """
    weighed = mass_wanted > 0
    count_high, mass_high = _measure(keys, weights, width, high, weighed)
    if count_high < count_wanted or mass_high < mass_wanted:
        return high
    low, count_low, mass_low = np.int32(-1), np.int64(0), np.int64(0)
    steps = 0
    while high - low > 1 and count_high - count_low > FEW:
        middle = np.int32((np.int64(low) + np.int64(high)) // 2)
        if steps < _HALVINGS:
            from_low = float_of_bits(max(low, np.int32(0)))
            middle = bits_of_float((from_low + float_of_bits(high)) * np.float32(0.5))
            middle = min(max(middle, np.int32(low + 1)), np.int32(high - 1))
        steps += 1
        count, mass = _measure(keys, weights, width, middle, weighed)
        if count >= count_wanted and mass >= mass_wanted:
            high, count_high = middle, count
        else:
            low, count_low, mass_low = middle, count, mass
    if high - low <= 1:
        return high
    room = np.empty(2 * FEW, np.int32)
    near_keys, near_weights = _halves(room.ctypes.data, FEW)
    num_near = _gather(keys, weights, width, low, high, near_keys, near_weights)
    while high - low > 1:
        middle = np.int32((np.int64(low) + np.int64(high)) // 2)
        count, mass = _measure(near_keys, near_weights, num_near, middle, weighed)
        if count_low + count >= count_wanted and mass_low + mass >= mass_wanted:
            high = middle
        else:
            low = middle
    room[0] = 0  # so that it lives until here
    return high


@exactly
def _cut(keys, weights, width, top_k, top_p, farthest):
    """The bits of the distance up to which tokens may be drawn."""
    cut = bits_of_float(_FARTHEST)
    if top_k > 0:
        cut = _nearest_cut(keys, weights, width, cut, np.int64(top_k), np.int64(0))
    if top_p < 1.0:
        mass = _mass(keys, weights, 0, width, cut)
        wanted = np.int64(np.ceil(top_p * np.float64(mass)))
        cut = _nearest_cut(keys, weights, width, cut, np.int64(1), wanted)
    nearest = np.float32(max(min(farthest, np.float64(_FARTHEST)), 0.0))
    return min(cut, max(bits_of_float(nearest), np.int32(0)))  # the bits of -0 are negative


@exactly
def _fall(keys, weights, width, cut, uniform):
    """The column at which the running sum of what lies within a cut passes its share `uniform`."""
    num_blocks = -(-width // BLOCK)
    sums = np.empty(num_blocks, np.int64)
    total = np.int64(0)
    for block in range(num_blocks):
        first = block * BLOCK
        sums[block] = _mass(keys, weights, first, min(first + BLOCK, width), cut)
        total += sums[block]
    rest = min(np.int64(uniform * np.float64(total)), total - 1)
    block = 0
    while rest >= sums[block]:
        rest -= sums[block]
        block += 1
    column = block * BLOCK
    while True:
        if keys[column] <= cut:
            rest -= weights[column]
            if rest < 0:
                return column
        column += 1


@exactly
def draw_item(a, item):
    """A row's token, and the same one as the next step's.

    logits float32 [T, V], V, drawn int32 [T], broken int32 [T] (1: the best logit is not a finite
    number, the token is 0), tokens int32 [T] of the next step, rules float64
    [T, `RULE_COLUMNS`], uniforms float64 [T], edits int64 [T, `EDIT_COLUMNS`] or 0.
    """
    width = a[5]
    address = a[4] + 4 * item * width
    bits, values = int32_pointer(address), float_pointer(address)
    token = _best(bits, values, width)
    rules = double_pointer(a[9] + 8 * RULE_COLUMNS * item)
    broken = token < 0
    if broken:
        token = 0
    elif rules[INVERSE] > 0.0:
        room = np.empty(2 * width, np.int32)
        keys, weights = _halves(room.ctypes.data, width)
        inverse = np.float32(rules[INVERSE])
        _weigh(values, values[token], inverse, width, keys, weights)
        top_k = np.int64(rules[TOP_K])
        cut = _cut(keys, weights, width, top_k, rules[TOP_P], rules[FARTHEST])
        token = _fall(keys, weights, width, cut, double_pointer(a[10])[item])
        room[0] = 0  # so that it lives until here
    int32_pointer(a[6])[item] = token
    int32_pointer(a[7])[item] = broken
    int32_pointer(a[8])[item] = token
    if a[11] != 0:
        append(a[11], item, token)
