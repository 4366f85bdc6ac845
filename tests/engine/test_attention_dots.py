"""Weights of attention in vectors: a softmax that leaves out what is behind the last score."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from daemon.engine.cpu import attention_dots
from daemon.engine.cpu.attention_dots import POSITIONS

_IN_PLACE: Any = attention_dots.soften


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _soften(scores: np.ndarray, count: int, scale: float) -> None:
    _IN_PLACE(scores.ctypes.data, count, np.float32(scale))
    scores[0] += np.float32(0.0)  # it lives until here


def weights(scores: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Those of so many scores, with more of the last one behind them."""
    whole = -(-scores.size // POSITIONS) * POSITIONS
    padded = np.append(scores, np.repeat(scores[-1:], whole - scores.size)).astype(np.float32)
    _soften(padded, scores.size, scale)
    assert not padded[scores.size :].any() or np.isnan(padded).any()
    return padded[: scores.size]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 64, 1000])
@pytest.mark.parametrize("size", [0.01, 3.0, 300.0])
def test_a_softmax_to_the_last_bits(count: int, size: float) -> None:
    scores = (np.random.default_rng(count).standard_normal(count) * size).astype(np.float32)
    found = weights(scores, 0.125)
    exact = scores.astype(np.float64) * 0.125
    exact = np.exp(exact - exact.max())
    np.testing.assert_allclose(found, exact / exact.sum(), rtol=2e-5, atol=1e-37)
    assert found.sum(dtype=np.float64) == pytest.approx(1.0, abs=1e-5)


def test_one_that_stands_out_takes_all() -> None:
    scores = np.full(40, -1e30, np.float32)
    scores[33] = 1e30
    found = weights(scores)
    assert found[33] == 1.0 and found.sum() == pytest.approx(1.0)


def test_what_is_no_number_is_not_hidden() -> None:
    for bad in (np.nan, np.inf):
        scores = np.zeros(20, np.float32)
        scores[7] = bad
        assert np.isnan(weights(scores)).any()
    alone = np.full(3, np.nan, np.float32)
    assert np.isnan(weights(alone)).all()
