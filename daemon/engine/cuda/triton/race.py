"""The noise of draws on the device, and the race of a chunk's tokens that it decides.

The noise is that of `daemon.engine.sampler.noise` to the last bit.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import triton
import triton.language as tl

from daemon.engine.sampler import noise as host

BLOCK = tl.constexpr(host.BLOCK)
"""Tokens of a block; chunks are made of whole ones."""

_BLOCKS_FROM = tl.constexpr(host.BLOCKS_FROM)
_GOLDEN = tl.constexpr(int(host.GOLDEN))
_MIX_FIRST = tl.constexpr(int(host.MIX[0]))
_MIX_LAST = tl.constexpr(int(host.MIX[1]))
_COUNT = tl.constexpr(1 << 53)
_UNIT = tl.constexpr(float(host.UNIT))
_SHARE = tl.constexpr(1.0 / host.BLOCK)
_ROOT_HALF = tl.constexpr(float(host.ROOT_HALF))
_LOG_OF_TWO = tl.constexpr(float(host.LOG_OF_TWO))
_LOG_OF_TWO_REST = tl.constexpr(float(host.LOG_OF_TWO_REST))
_SLACK = tl.constexpr(float(host.SLACK))
_A, _B, _C, _D, _E, _F, _G, _H, _I = (tl.constexpr(float(factor)) for factor in host.SERIES)


@triton.jit
def _bits(key, number):
    """64 random bits of each int64 number."""
    state = key + number.to(tl.uint64) * _GOLDEN
    state = (state ^ (state >> 30)) * _MIX_FIRST
    state = (state ^ (state >> 27)) * _MIX_LAST
    return state ^ (state >> 31)


@triton.jit
def _series(rest, exponent):
    """The logarithm of (1 + rest) * 2 ** exponent."""
    square = rest * rest
    total = rest * _A + _B
    total = total * rest + _C
    total = total * rest + _D
    total = total * rest + _E
    total = total * rest + _F
    total = total * rest + _G
    total = total * rest + _H
    total = total * rest + _I
    total = total * rest * square
    total = total + exponent * _LOG_OF_TWO_REST
    total = total - square * 0.5
    return (rest + total) + exponent * _LOG_OF_TWO


@triton.jit
def _parted(value):
    """(rest, exponent) of positive float32 that are (1 + rest) * 2 ** exponent."""
    bits = value.to(tl.int32, bitcast=True)
    exponent = ((bits >> 23) - 126).to(tl.float32)
    half = ((bits & 0x7FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    low = half < _ROOT_HALF
    rest = tl.where(low, half + half - 1.0, half - 1.0)
    return rest, tl.where(low, exponent - 1.0, exponent)


@triton.jit
def _log(value):
    rest, exponent = _parted(value)
    return _series(rest, exponent)


@triton.jit
def _wait(bits):
    """An exponential variate of mean 1 of each of some bits."""
    odd = (bits >> 11).to(tl.int64) | 1
    value = odd.to(tl.float32) * _UNIT
    rest, exponent = _parted(value)
    near = value >= _ROOT_HALF
    rest = tl.where(near, (odd - _COUNT).to(tl.float32) * _UNIT, rest)
    return -_series(rest, tl.where(near, 0.0, exponent))


@triton.jit
def noise(key, token):
    """The noise that is added to the logits of tokens int64 [N]."""
    bits = _bits(key, token // BLOCK + _BLOCKS_FROM)
    first = (bits & (BLOCK - 1)).to(tl.int64)
    wait = _wait(bits) * _SHARE
    return -_log(tl.where(first == token % BLOCK, wait, wait + _wait(_bits(key, token))))


@triton.jit
def chunk_winner(
    source, key, best, inverse, chunk, sure, VOCAB: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The best score of a chunk of the row at `source`, and its token; if none reaches `sure`,
    minus infinity.
    """
    block = (chunk * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK)).to(tl.int64)
    lane = tl.arange(0, BLOCK).to(tl.int64)
    token = block[:, None] * BLOCK + lane[None, :]
    logit = tl.load(source + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    depth = tl.abs((best - logit) * inverse)
    bits = _bits(key, block + _BLOCKS_FROM)
    wait = _wait(bits) * _SHARE
    bound = -_log(wait) - tl.min(depth, 1) + _SLACK
    score = float("-inf")
    winner = VOCAB
    if tl.max(bound, 0) >= sure:
        first = (bits & (BLOCK - 1)).to(tl.int64)[:, None] == lane[None, :]
        later = wait[:, None] + _wait(_bits(key, token))
        scores = -_log(tl.where(first, wait[:, None], later)) - depth
        score = tl.max(tl.max(scores, 1), 0)
        places = tl.where(scores == score, token, VOCAB)
        winner = tl.min(tl.min(places, 1), 0).to(tl.int32)
    return score, winner
