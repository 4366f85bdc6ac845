"""Scale and lowest number of each group of 4-bit integers: those with a small squared error.

Several ranges are tried, among them that from the smallest to the largest number. Numbers become
integers within a range; scale and lowest number then become those that fit these integers best, and
so on a few times. The fit of least error is taken, so that none is worse than the whole range.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

_LANES = 16  # groups side by side: the sums of each are taken in one order on every processor
_RANGES = np.array([1.0, 1.03, 0.95, 0.9, 0.85, 0.8], np.float32)
"""Shares of the whole range, about its middle."""
_TURNS = 4
_SMALLEST_SCALE = np.finfo(np.float32).tiny

Float32 = npt.NDArray[np.float32]
_compiled = njit(cache=True, nogil=True, error_model="numpy")


def fitted(groups: Float32, steps: int) -> tuple[Float32, Float32]:
    """Scales and lowest numbers [n] for the integers 0 to `steps` of each of `groups` [n, len].

    A scale is next to nothing where a group's numbers are all alike.
    """
    lows = groups.min(1)
    scales = (groups.max(1) - lows) / np.float32(steps)
    _fit(np.ascontiguousarray(groups), np.float32(steps), _RANGES, _TURNS, scales, lows)
    return scales, lows


@_compiled
def _fit(groups, most, ranges, turns, scales, lows):  # type: ignore[no-untyped-def]
    """Replace the scales and lows of the whole ranges."""
    count, length = groups.shape
    numbers = np.empty((length, _LANES), np.float32)
    scale, low = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    least, sums = np.empty(_LANES, np.float32), np.empty((4, _LANES), np.float32)
    total = np.empty(_LANES, np.float32)
    for start in range(0, count, _LANES):
        used = min(_LANES, count - start)
        total[:] = 0
        for lane in range(_LANES):
            for place in range(length):
                number = groups[start + min(lane, used - 1), place]
                numbers[place, lane] = number
                total[lane] += number
        whole = scales[start : start + used] * most
        middle = lows[start : start + used] + whole / np.float32(2)
        least[:] = np.inf
        for share in ranges:
            for lane in range(_LANES):
                group = min(lane, used - 1)
                scale[lane] = whole[group] * share / most
                low[lane] = middle[group] - whole[group] * share / np.float32(2)
            for _ in range(turns):
                _round(numbers, scale, low, most, sums)
                for lane in range(used):
                    if sums[0, lane] < least[lane]:
                        least[lane] = sums[0, lane]
                        scales[start + lane], lows[start + lane] = scale[lane], low[lane]
                _refit(np.float32(length), total, sums, scale, low)


@_compiled
def _round(numbers, scale, low, most, sums):  # type: ignore[no-untyped-def]
    """Into `sums`: the squared error, and the sums of integers, of their squares, and of them
    times their numbers.
    """
    zero = np.float32(0)
    inverse = np.empty(_LANES, np.float32)
    for lane in range(_LANES):
        usable = scale[lane] >= _SMALLEST_SCALE
        inverse[lane] = np.float32(1) / scale[lane] if usable else zero
    sums[:] = zero
    for place in range(len(numbers)):
        for lane in range(_LANES):
            number = numbers[place, lane]
            integer = min(max(np.rint((number - low[lane]) * inverse[lane]), zero), most)
            lost = number - (low[lane] + scale[lane] * integer)
            sums[0, lane] += lost * lost
            sums[1, lane] += integer
            sums[2, lane] += integer * integer
            sums[3, lane] += integer * number


@_compiled
def _refit(length, total, sums, scale, low):  # type: ignore[no-untyped-def]
    """The line through integers and numbers, by least squares."""
    for lane in range(_LANES):
        spread = length * sums[2, lane] - sums[1, lane] * sums[1, lane]
        if spread > 0:
            scale[lane] = (length * sums[3, lane] - sums[1, lane] * total[lane]) / spread
            low[lane] = (total[lane] - scale[lane] * sums[1, lane]) / length
