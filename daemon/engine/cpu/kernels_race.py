"""The CPU kernel of sampling's noise, to the last bit that of `daemon.engine.sampler.noise`."""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np

from daemon.engine.cpu.numeric import strictly
from daemon.engine.cpu.team import bits_of_float, float_of_bits
from daemon.engine.sampler.noise import (
    BLOCK,
    BLOCKS_FROM,
    GOLDEN,
    LOG_OF_TWO,
    LOG_OF_TWO_REST,
    MIX,
    ROOT_HALF,
    SERIES,
    SLACK,
    UNIT,
)

_COUNT = np.int64(1 << 53)
_SHARE = np.float32(1.0 / BLOCK)
_NOTHING = np.float32(-np.inf)


@strictly
def _bits(key, index):
    state = key + np.uint64(index) * GOLDEN
    state = (state ^ (state >> np.uint64(30))) * MIX[0]
    state = (state ^ (state >> np.uint64(27))) * MIX[1]
    return state ^ (state >> np.uint64(31))


@strictly
def _series(rest, exponent):
    """The logarithm of (1 + rest) * 2 ** exponent."""
    square = rest * rest
    sum_ = SERIES[0]
    for factor in SERIES[1:]:
        sum_ = sum_ * rest + factor
    sum_ = sum_ * rest * square
    sum_ = sum_ + exponent * LOG_OF_TWO_REST
    sum_ = sum_ - np.float32(0.5) * square
    return (rest + sum_) + exponent * LOG_OF_TWO


@strictly
def _parted(value):
    """(rest, exponent) of a positive float32 that is (1 + rest) * 2 ** exponent."""
    bits = bits_of_float(value)
    exponent = np.float32((bits >> 23) - 126)
    half = float_of_bits(np.int32((bits & 0x7FFFFF) | 0x3F000000))
    low = half < ROOT_HALF
    rest = half + half - np.float32(1.0) if low else half - np.float32(1.0)
    return rest, (exponent - np.float32(1.0) if low else exponent)


@strictly
def _log(value):
    rest, exponent = _parted(value)
    return _series(rest, exponent)


@strictly
def _wait(bits):
    """An exponential variate of mean 1."""
    odd = np.int64(bits >> np.uint64(11)) | np.int64(1)
    value = np.float32(odd) * UNIT
    rest, exponent = _parted(value)
    near = value >= ROOT_HALF
    rest = -(np.float32(_COUNT - odd) * UNIT) if near else rest
    return -_series(rest, np.float32(0.0) if near else exponent)


@strictly
def _score(key, token, block_bits, block_wait, depth):
    wait = block_wait
    if np.int64(block_bits & np.uint64(BLOCK - 1)) != token % BLOCK:
        wait = block_wait + _wait(_bits(key, token))
    return -_log(wait) - depth


@strictly
def _bounds(width, best, inverse, farthest, key, tops, waits, bounds):
    """The least wait of each block of tokens, and a score that none of its tokens passes."""
    for block in range(-(-width // BLOCK)):
        wait = _wait(_bits(key, BLOCKS_FROM + block)) * _SHARE
        nearest = (best - tops[block]) * inverse
        waits[block] = wait
        bounds[block] = -_log(wait) - nearest + SLACK if nearest <= farthest else _NOTHING


@strictly
def winner(values, width, token, inverse, farthest, key, room):
    """The token of the best score among those that lie no farther below the best one, `token`.

    `values` float32 [width]; `room` float32 [3, blocks], of which the first row is the best logit
    of each block.
    """
    best = values[token]
    tops, waits, bounds = room[0], room[1], room[2]
    _bounds(width, best, inverse, farthest, key, tops, waits, bounds)
    own = token // BLOCK
    score = _score(key, token, _bits(key, BLOCKS_FROM + own), waits[own], np.float32(0.0))
    num_blocks, first = -(-width // BLOCK), own
    for block in range(num_blocks):
        if bounds[block] > bounds[first]:
            first = block
    # The most promising block comes first: its score spares most others.
    for turn in range(-1, num_blocks):
        block = first if turn < 0 else turn
        if bounds[block] >= score and turn != first:
            bits, wait = _bits(key, BLOCKS_FROM + block), waits[block]
            most = -_log(wait) + SLACK
            for column in range(block * BLOCK, min((block + 1) * BLOCK, width)):
                depth = (best - values[column]) * inverse
                if depth <= farthest and most - depth >= score:
                    found = _score(key, column, bits, wait, depth)
                    if found > score or (found == score and column < token):
                        score, token = found, column
    return token
