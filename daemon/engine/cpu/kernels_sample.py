"""The CPU kernel that samples a row's token: temperature, top-k, top-p, min-p, and the draw.

As in `daemon.engine.sampler`, a filter is a cut, ties at it stay, and
a token depends on the row's logits, its rules and its key alone. Weights that top-p sums are
integers, whose sums are the same in any order.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np

from daemon.engine.cpu.kernels_edit import append
from daemon.engine.cpu.kernels_race import winner
from daemon.engine.cpu.numeric import exactly, strictly
from daemon.engine.cpu.numeric import exp as _exp
from daemon.engine.cpu.team import (
    bits_of_float,
    double_pointer,
    float_of_bits,
    float_pointer,
    int32_pointer,
    int64_pointer,
)
from daemon.engine.sampler.noise import BLOCK, REACH
from daemon.engine.sampler.sample_columns import FARTHEST, INVERSE, RULE_COLUMNS, TOP_K, TOP_P

FEW = 512
"""Most columns that are searched whole: gathering them would take as long."""
_LEFT = 4
"""A search continues with the columns that may matter once they are one in this many."""

_STRETCH = 512
_INFINITY = 0x7F800000  # its bits as a float32; those of what is not a number are greater
_NEGATIVE_ZERO = -0x80000000
_ONE = np.float32(2.0**30)  # the weight of the best token
_WEIGHTLESS = np.float32(22.0)  # beyond it a weight is 0
_REACH = np.float32(REACH)
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
def _best(bits, values, width, tops):
    """The first of the best logits; -1 where it is not a finite number. `tops`: of each block."""
    best, magnitude, begin = _NEGATIVE_ZERO, 0, 0
    for block in range(-(-width // BLOCK)):
        first = block * BLOCK
        most, magnitude_here = _most(bits, first, min(first + BLOCK, width))
        tops[block] = float_of_bits(np.int32(most ^ ((most >> 31) & 0x7FFFFFFF)))
        magnitude = max(magnitude, magnitude_here)
        if most > best:
            best, begin = most, first
    if magnitude > _INFINITY or best >= _INFINITY or best < -_INFINITY:
        return -1
    token = begin
    for column in range(begin, min(begin + BLOCK, width)):
        if values[column] > values[token]:
            token = column
    return token


@exactly
def _halves(address, width):
    """Two times int32 [width], at an address: lanes read pointers faster than arrays."""
    return int32_pointer(address), int32_pointer(address + 4 * width)


@strictly
def _distance(value, best, inverse):
    """How far below the best a logit lies, over the temperature.

    Distances are kept as their bits, which as integers have their order; those of -0 would not.
    """
    return max(bits_of_float((best - value) * inverse), np.int32(0))


@exactly
def _measure_out(values, best, inverse, width, keys, weights, weighed):
    """The distance of each logit, and its token's weight, if that is asked for."""
    if weighed:
        for column in range(width):
            key = _distance(values[column], best, inverse)
            keys[column] = key
            weights[column] = _weight(key)
    else:
        for column in range(width):
            keys[column] = _distance(values[column], best, inverse)


@exactly
def _weight(key):
    """The weight of a token at some distance."""
    return np.int32(_exp(-float_of_bits(key)) * _ONE + np.float32(0.5))


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
    """The weight of some columns, as far as they lie within a cut.

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
    """(how many columns lie within a cut, their weight, if that is asked for)."""
    mass = _mass(keys, weights, 0, width, cut) if weighed else np.int64(0)
    return _count(keys, width, cut), mass


@exactly
def _gather(keys, weights, width, low, high, near_keys, near_weights):
    """Gather the columns between two cuts, in place or elsewhere; how many they are."""
    count = 0
    for column in range(width):
        key, weight = keys[column], weights[column]
        near_keys[count], near_weights[count] = key, weight
        count += np.int64(low < key) & np.int64(key <= high)
    return count


@exactly
def _nearest_cut(keys, weights, width, high, count_wanted, mass_wanted, kept):
    """The nearest cut that holds `count_wanted` columns, or `mass_wanted` weight; at most `high`.

    Halved evenly first, then bit by bit. Columns that no cut may part any more are left out as soon
    as most are: what is between two cuts is gathered at the beginning, unless all is `kept`.
    """
    weighed = mass_wanted > 0
    count_high, mass_high = _measure(keys, weights, width, high, weighed)
    if count_high < count_wanted or mass_high < mass_wanted:
        return high
    low, count_low, mass_low = np.int32(-1), np.int64(0), np.int64(0)
    count_out, mass_out = np.int64(0), np.int64(0)  # of columns within `low` that are left out
    steps = 0
    while high - low > 1:
        middle = np.int32((np.int64(low) + np.int64(high)) // 2)
        if steps < _HALVINGS:
            from_low = float_of_bits(max(low, np.int32(0)))
            middle = bits_of_float((from_low + float_of_bits(high)) * np.float32(0.5))
            middle = min(max(middle, np.int32(low + 1)), np.int32(high - 1))
        steps += 1
        count, mass = _measure(keys, weights, width, middle, weighed)
        count, mass = count + count_out, mass + mass_out
        if count >= count_wanted and mass >= mass_wanted:
            high, count_high = middle, count
        else:
            low, count_low, mass_low = middle, count, mass
        if not kept and width > FEW and _LEFT * (count_high - count_low) < width:
            width = _gather(keys, weights, width, low, high, keys, weights)
            count_out, mass_out = count_low, mass_low
    return high


@exactly
def _near(values, best, inverse, width, top_k, tops, keys, weights):
    """Gather the distances of tokens among which the best `top_k` are, and at times not many more.

    `tops` [blocks] are the best logits of blocks. Where `top_k` of these lie within a cut, at least
    as many tokens do, all of them in those blocks. Returns how many were gathered, and that cut.
    """
    num_blocks = -(-width // BLOCK)
    _measure_out(tops, best, inverse, num_blocks, keys, weights, False)
    cut = bits_of_float(_REACH)
    cut = _nearest_cut(keys, weights, num_blocks, cut, top_k, np.int64(0), True)
    count = 0
    for block in range(num_blocks):
        if _distance(tops[block], best, inverse) <= cut:
            for column in range(block * BLOCK, min((block + 1) * BLOCK, width)):
                key = _distance(values[column], best, inverse)
                keys[count] = key
                count += np.int64(key <= cut)
    return count, cut


@exactly
def _cut(values, best, inverse, width, rules, tops):
    """How far below the best a token may lie to be sampled.

    Nothing is beyond `REACH`, so neither does a top-k look there, nor a top-p where weights are 0.
    """
    top_k, top_p = np.int64(rules[TOP_K]), rules[TOP_P]
    cut, count = bits_of_float(_REACH), width
    if top_k > 0 or top_p < 1.0:
        room = np.empty(2 * width, np.int32)
        keys, weights = _halves(room.ctypes.data, width)
        weighed = top_p < 1.0
        if top_k > 0 and top_k * _LEFT <= -(-width // BLOCK):
            count, cut = _near(values, best, inverse, width, top_k, tops, keys, weights)
            if weighed:
                for column in range(count):
                    weights[column] = _weight(keys[column])
        else:
            _measure_out(values, best, inverse, width, keys, weights, weighed)
        if top_k > 0:
            cut = _nearest_cut(keys, weights, count, cut, top_k, np.int64(0), weighed)
        if weighed:
            mass = _mass(keys, weights, 0, count, cut)
            wanted = np.int64(np.ceil(top_p * np.float64(mass)))
            cut = min(cut, bits_of_float(_WEIGHTLESS))
            cut = _nearest_cut(keys, weights, count, cut, np.int64(1), wanted, False)
        room[0] = 0  # so that it lives until here
    nearest = np.float32(max(min(rules[FARTHEST], np.float64(_REACH)), 0.0))
    return min(float_of_bits(cut), nearest)


@exactly
def draw_item(a, item):
    """A row's token, and the same one as the next step's.

    logits float32 [T, V], V, drawn int32 [T], broken int32 [T] (1: the best logit is not a finite
    number, the token is 0), tokens int32 [T] of the next step, rules float64
    [T, `RULE_COLUMNS`], keys uint64 [T], edits int64 [T, `EDIT_COLUMNS`] or 0.
    """
    width = a[5]
    address = a[4] + 4 * item * width
    bits, values = int32_pointer(address), float_pointer(address)
    room = np.empty((3, -(-width // BLOCK)), np.float32)
    token = _best(bits, values, width, room[0])
    rules = double_pointer(a[9] + 8 * RULE_COLUMNS * item)
    broken = token < 0
    if broken:
        token = 0
    elif rules[INVERSE] > 0.0:
        inverse = np.float32(rules[INVERSE])
        farthest = _cut(values, values[token], inverse, width, rules, room[0])
        key = np.uint64(int64_pointer(a[10])[item])
        token = winner(values, width, token, inverse, farthest, key, room)
    int32_pointer(a[6])[item] = token
    int32_pointer(a[7])[item] = broken
    int32_pointer(a[8])[item] = token
    if a[11] != 0:
        append(a[11], item, token)
