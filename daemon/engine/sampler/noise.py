"""Noise that decides which token is sampled; it depends on (seed, position, token) alone.

A token of weight w waits for E / w, where E is an exponential variate of its own, and the first one
is sampled: so each token has the chance of its share of all weights (the Gumbel-max trick). A
token's weight moves its own wait alone: weights that differ by rounding sample the same token,
unless two tokens tie.

Tokens lie in blocks. A block's first wait is one variate, one of its tokens has it, and every other
one waits for a variate of its own longer: exponential variates forget what was waited for. So most
blocks are passed over by their best logit and their first wait.

All of it is computed in float32 by single operations in one order, so every device has the same
noise to the last bit: here with numpy, in `daemon.engine.cpu.kernels_race` and in
`daemon.engine.cuda.triton.race`.
"""

import numpy as np
import numpy.typing as npt

UInts = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

UINT64_MASK = (1 << 64) - 1

BLOCK = 128
"""Tokens of a block; a power of two."""

REACH = 48.0
"""Tokens this far below the best one are never sampled: waits of a token lie between
2 ** -53 / BLOCK (e ** -41.6) and 37.
"""

BLOCKS_FROM = 1 << 40
"""The number of the first block's bits; those of tokens are their own."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_ODD = np.uint64(0xD1B54A32D192ED03)

UNIT = np.float32(2.0**-53)
"""Uniform numbers are odd multiples of it: 2 ** 52 of them lie between 0 and 1."""

ROOT_HALF = np.float32(0.70710677)
LOG_OF_TWO = np.float32(0.693359375)  # its first bits
LOG_OF_TWO_REST = np.float32(-2.12194440e-4)
SERIES = tuple(
    np.float32(factor)
    for factor in (
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
)
"""Coefficients of the logarithm, from Cephes."""

SLACK = np.float32(1e-3)
"""How much more than rounding a bound is wider than what it bounds."""


def mixed(state: UInts) -> UInts:
    """The splitmix64 finaliser: every input bit reaches every output bit."""
    state = (state ^ (state >> np.uint64(30))) * MIX[0]
    state = (state ^ (state >> np.uint64(27))) * MIX[1]
    return state ^ (state >> np.uint64(31))


def keys(seeds: UInts, positions: Integers) -> UInts:
    """One number for each (seed, position), from which its tokens' noise comes.

    `seeds` [R], `positions` [R], or [times, R] for several of each seed.
    """
    places = mixed(positions.astype(np.uint64) * _ODD + GOLDEN)
    return mixed(mixed(seeds + GOLDEN) ^ places)


def bits_of(key: UInts, numbers: Integers) -> UInts:
    """64 random bits per number: SplitMix64's, `key` being its state."""
    return mixed(key + numbers.astype(np.uint64) * GOLDEN)


def waits_of(bits: UInts) -> Floats:
    """An exponential variate of mean 1 of each of some bits, from 2 ** -53 to 36.7.

    -log(v) of a uniform number v; close to 1 from 1 - v, which is known to all of its bits.
    """
    odd = (bits >> np.uint64(11)).astype(np.int64) | 1
    value = odd.astype(np.float32) * UNIT
    rest, exponent = _parted(value)
    near = value >= ROOT_HALF
    rest = np.where(near, -(((1 << 53) - odd).astype(np.float32) * UNIT), rest)
    return -_series(rest, np.where(near, np.float32(0), exponent))


def log(values: Floats) -> Floats:
    """The logarithm of normal positive numbers."""
    return _series(*_parted(values))


def block_waits(key: UInts, blocks: Integers) -> tuple[Floats, Integers]:
    """The first wait of blocks, and the place in the block of the token that has it."""
    bits = bits_of(key, blocks + BLOCKS_FROM)
    firsts = (bits & np.uint64(BLOCK - 1)).astype(np.int64)
    return waits_of(bits) * np.float32(1.0 / BLOCK), firsts


def noise(key: UInts, tokens: Integers) -> Floats:
    """The noise added to each token's logit: -log of its wait."""
    wait, first = block_waits(key, tokens // BLOCK)
    own = waits_of(bits_of(key, tokens))
    return -log(np.where(first == tokens % BLOCK, wait, wait + own))


def _parted(values: Floats) -> tuple[Floats, Floats]:
    """(rest, exponent) of positive numbers that are (1 + rest) * 2 ** exponent."""
    bits = values.view(np.int32)
    exponent = ((bits >> 23) - 126).astype(np.float32)
    half = ((bits & 0x7FFFFF) | 0x3F000000).view(np.float32)
    low = half < ROOT_HALF
    unit = np.float32(1.0)
    return np.where(low, half + half - unit, half - unit), np.where(low, exponent - unit, exponent)


def _series(rest: Floats, exponent: Floats) -> Floats:
    square = rest * rest
    total = np.full_like(rest, SERIES[0])
    for factor in SERIES[1:]:
        total = total * rest + factor
    total = total * rest * square
    total = total + exponent * LOG_OF_TWO_REST
    total = total - np.float32(0.5) * square
    found: Floats = (rest + total) + exponent * LOG_OF_TWO
    return found
