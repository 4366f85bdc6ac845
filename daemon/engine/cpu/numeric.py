"""The parts that all CPU kernels share: how they are compiled, and the exponential."""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np
from numba import njit

from daemon.engine.cpu.team import power_of_two

TOKENS_AT_ONCE = 8
"""Tokens in one item of the small kernels."""

_FASTMATH = {"reassoc", "contract", "nsz", "arcp", "nnan"}
inner = njit(cache=True, fastmath=_FASTMATH, error_model="numpy", inline="always")
item = njit(cache=True, fastmath=_FASTMATH, error_model="numpy")
# Where the order of sums matters: no reassociation, and no inlining that would bring it in.
exactly = njit(cache=True, fastmath={"contract"}, error_model="numpy")
# Where each operation rounds by itself, as it does elsewhere. A function that does not say its
# fastmath has from numba that of the first caller that it is compiled for.
strictly = njit(cache=True, fastmath=False, error_model="numpy")


@exactly
def exp(x):
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


@inner
def capped(score, scale, cap):
    """A score after scaling, kept within -cap and cap; `cap` 0 keeps it as it is."""
    score *= scale
    if cap == np.float32(0.0):
        return score
    # tanh, by an exponential of what cannot overflow.
    shrunk = exp(np.float32(-2.0) * abs(score) / cap)
    size = cap * (np.float32(1.0) - shrunk) / (np.float32(1.0) + shrunk)
    return -size if score < np.float32(0.0) else size
