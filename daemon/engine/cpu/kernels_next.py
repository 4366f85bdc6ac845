"""The CPU kernels between two steps of a program: the greedy draw, and the place a token further.

As in `kernels`, an item is one row of a call, and `daemon.engine.cpu.calls` writes the calls.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from daemon.engine.cpu.numeric import exactly
from daemon.engine.cpu.team import float_pointer, int32_pointer

_STRETCH = 512
_INFINITY = 0x7F800000  # its bits as a float32; those of what is not a number are greater
_NEGATIVE_ZERO = -0x80000000


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
def draw_item(a, item):
    """The first of a row's best logits, as `daemon.engine.sampler.choose` draws where it is greedy.

    logits float32 [T, V], V, drawn int32 [T], broken int32 [T] (1: the best logit is not a finite
    number, the token is 0), tokens int32 [T] of the next step.
    """
    width = a[5]
    address = a[4] + 4 * item * width
    bits, values = int32_pointer(address), float_pointer(address)
    best, magnitude, begin = _NEGATIVE_ZERO, 0, 0
    for first in range(0, width, _STRETCH):
        most, magnitude_here = _most(bits, first, min(first + _STRETCH, width))
        magnitude = max(magnitude, magnitude_here)
        if most > best:
            best, begin = most, first
    token = 0
    broken = magnitude > _INFINITY or best >= _INFINITY or best < -_INFINITY
    if not broken:
        token = begin
        for column in range(begin, min(begin + _STRETCH, width)):
            if values[column] > values[token]:
                token = column
    int32_pointer(a[6])[item] = token
    int32_pointer(a[7])[item] = broken
    int32_pointer(a[8])[item] = token


@exactly
def advance_item(a, item):
    """A row's place, one token further.

    lens, blocks, offsets int32 [T], tables int32 [T, width], width, block size, cosines and sines
    float32 [positions, rotary_dim], rotary_dim, those of the row float32 [T, rotary_dim], twice.
    """
    lens, block_size, width = int32_pointer(a[4]), a[9], a[12]
    position = lens[item]
    lens[item] = position + 1
    int32_pointer(a[5])[item] = int32_pointer(a[7])[item * a[8] + position // block_size]
    int32_pointer(a[6])[item] = position % block_size
    cosines, sines = float_pointer(a[10]), float_pointer(a[11])
    cos, sin = float_pointer(a[13]), float_pointer(a[14])
    for lane in range(width):
        cos[item * width + lane] = cosines[position * width + lane]
        sin[item * width + lane] = sines[position * width + lane]
