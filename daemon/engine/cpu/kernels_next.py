"""The CPU kernel between two steps of a program: rows go a token further.

As in `kernels`, an item is one row of a call, and `daemon.engine.cpu.calls` writes the calls.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from daemon.engine.cpu.numeric import exactly
from daemon.engine.cpu.team import float_pointer, int32_pointer


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
