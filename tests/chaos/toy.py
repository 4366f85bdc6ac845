"""A toy model in integers: every key and value depends on the whole context that it was made with.

An entry of the KV cache is two numbers: `own`, of its token and position, and `seen`, of all that
came before it as it was read when the entry was written. Equal prefixes have equal entries, so
blocks can be shared; and whoever reads a context can tell whether each entry belongs to it.
"""

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]

_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_MIX = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


def mixed(values: Numbers) -> Numbers:
    """Each number well mixed; equal for equal ones."""
    out = values ^ (values >> _SHIFT)
    out = out * _MIX[0]
    out = (out ^ (out >> _SHIFT)) * _MIX[1]
    return out ^ (out >> _SHIFT)


def own(tokens: npt.ArrayLike, positions: npt.ArrayLike) -> Numbers:
    """The first number of each entry [T], of its token and its position."""
    ids, places = np.asarray(tokens, np.uint64), np.asarray(positions, np.uint64)
    return mixed((ids + np.uint64(1)) * _ODD[0] + (places + np.uint64(1)) * _ODD[1])


def seen(owns: Numbers) -> Numbers:
    """The second number of each entry [T] of a whole context, from its first numbers."""
    return mixed(np.cumsum(owns, dtype=np.uint64))


def summary(seens: Numbers) -> int:
    """The model's result for a context, from the second numbers of all its entries."""
    return combined(int(np.sum(seens, dtype=np.uint64)))


def combined(*values: int) -> int:
    """One number of several, in this order."""
    out = np.zeros(1, np.uint64)
    for value in values:
        out = mixed(out * _ODD[0] + np.uint64(value & 0xFFFFFFFFFFFFFFFF))
    return int(out[0])
