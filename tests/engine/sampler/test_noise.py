"""The noise of draws: exponential variates, the same wherever they are computed."""

import numpy as np
import pytest
from numba import njit
from numba.core.caching import NullCache

from daemon.engine.cpu import kernels_race
from daemon.engine.cpu.numeric import strictly
from daemon.engine.sampler.noise import (
    BLOCK,
    REACH,
    bits_of,
    block_waits,
    keys,
    log,
    noise,
    waits_of,
)

ENDS = np.array([0, 1, 2**11, 2**63, 2**64 - 1, 2**64 - 2**12], np.uint64)


def some_bits(count: int) -> np.ndarray:
    chance = np.random.default_rng(3)
    return np.concatenate([ENDS, chance.integers(0, 2**64, count, dtype=np.uint64)])


def test_keys_differ_between_neighbours_and_use_all_bits() -> None:
    seeds = np.repeat(np.arange(200, dtype=np.uint64), 200)
    assert len(np.unique(keys(seeds, np.tile(np.arange(200), 200)))) == len(seeds)
    seeds = np.uint64(1) << np.arange(64, dtype=np.uint64)
    assert len(np.unique(keys(seeds, np.zeros(64, np.int64)))) == 64


def test_waits_are_the_logarithm_of_all_their_bits() -> None:
    bits = some_bits(20_000)
    odd = (bits >> np.uint64(11)).astype(np.int64) | 1
    near = odd > 1 << 52
    value = np.where(near, 0.5, odd * 2.0**-53)
    expected = np.where(near, -np.log1p(-((1 << 53) - odd) * 2.0**-53), -np.log(value))
    assert np.abs(waits_of(bits) / expected - 1).max() < 3e-7
    assert waits_of(ENDS).min() == np.float32(2.0**-53)
    assert -np.log(2.0**-53 / BLOCK) + np.log(waits_of(ENDS).max() * (1 + 1 / BLOCK)) < REACH


def test_logarithms_are_right_to_their_last_bits() -> None:
    values = np.exp(np.random.default_rng(4).uniform(-45, 45, 20_000)).astype(np.float32)
    assert np.abs(log(values) - np.log(values.astype(np.float64))).max() < 4e-6
    assert log(np.ones(1, np.float32))[0] == 0.0


def test_compiled_noise_rounds_each_operation_whoever_it_is_compiled_for() -> None:
    fast = njit(fastmath={"contract", "reassoc"})
    series = strictly(kernels_race._series.py_func)
    series._cache = NullCache()  # compiled now, as a part of its caller
    caller = fast(lambda rest, exponent: series(rest, exponent))
    caller(np.float32(0.1), np.float32(3.0))
    (code,) = series.inspect_llvm().values()
    assert "fmul float" in code and "fmul contract" not in code and "reassoc" not in code


def test_compiled_noise_is_the_same_to_the_last_bit() -> None:
    bits = some_bits(4000)
    found = np.array([kernels_race._wait(one) for one in bits], np.float32)
    assert (found == waits_of(bits)).all()
    assert (np.array([kernels_race._log(one) for one in found]) == log(found)).all()


def statistic(variates: np.ndarray, bins: int = 100) -> float:
    """Chi-square of what should be exponential of mean 1, with `bins` - 1 degrees."""
    counts, _ = np.histogram(np.exp(-variates.astype(np.float64)), bins, (0, 1))
    even = variates.size / bins
    return float(((counts - even) ** 2 / even).sum())


def test_the_smallest_and_the_greatest_waits_are_as_even_as_the_others() -> None:
    """Those that decide for tokens of one in a million: among the first bits there is no such."""
    bits = some_bits(40_000) >> np.uint64(20)
    early, late = waits_of(~bits), waits_of(bits)
    counts, _ = np.histogram(early.astype(np.float64) * 2.0**20, 100, (0, 1))
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 160
    assert statistic(late - np.float32(20 * np.log(2.0))) < 160


def waits_by(place: str, count: int) -> np.ndarray:
    """exp(-noise) of `count` (seed, position, token), neighbours in one of the three."""
    many, one = np.arange(count), np.zeros(count, np.int64)
    seeds, positions, tokens = {
        "seed": (many, one, one + 5),
        "position": (one, many, one + BLOCK),
        "token": (one, one, many),
    }[place]
    return np.exp(-noise(keys(seeds.astype(np.uint64), positions), tokens))


@pytest.mark.parametrize("place", ["seed", "position", "token"])
def test_waits_are_exponential_and_independent(place: str) -> None:
    variates = waits_by(place, 40_000)
    assert statistic(variates) < 160  # 99 degrees: 148 is p = 0.001
    even = np.exp(-variates.astype(np.float64))
    for apart in (1, 2, BLOCK - 1, BLOCK, 1000):
        pairs, *_ = np.histogram2d(even[:-apart], even[apart:], 10, ((0, 1), (0, 1)))
        mean = pairs.sum() / 100
        assert ((pairs - mean) ** 2 / mean).sum() < 160, apart


def test_a_blocks_first_wait_is_one_tokens_and_all_others_are_later() -> None:
    key = keys(np.arange(50, dtype=np.uint64), np.arange(50))[:, None]
    wait, first = block_waits(key, np.array([3]))
    scores = noise(key, 3 * BLOCK + np.arange(BLOCK))
    assert (scores.argmax(1)[:, None] == first).all()
    assert (scores.max(1)[:, None] == -log(wait)).all()
    assert len(np.unique(bits_of(key, np.arange(1000)))) == 50_000
