"""Attention in vectors, against float64: its softmax, and whole calls."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from daemon.engine.cpu import attention_dots
from daemon.engine.cpu.attention_dots import POSITIONS
from daemon.engine.cpu.kernels import ATTEND, run_program
from daemon.engine.cpu.team import Team
from tests.engine.cpu.older_processors import OLDER, pass_on

_IN_PLACE: Any = attention_dots.soften


@njit(error_model="numpy")  # type: ignore[untyped-decorator]  # sums in their order
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


NUM_HEADS, BLOCK_SIZE = 3, 16


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_whole_calls(head_dim: int, groups: int) -> None:
    """Rows of all lengths about one run of positions, and of a few; beside them blocks of none."""
    chance = np.random.default_rng(groups)
    lens = np.array([1, 2, 3, 15, 16, 17, 33, 64, 65, 130], np.int32)
    width, num_rows = NUM_HEADS * head_dim, lens.size
    num_blocks = -(-int(lens.max()) // BLOCK_SIZE)
    pool = np.full((num_rows * num_blocks + 1, 2, BLOCK_SIZE, width), np.nan, np.float32)
    tables = chance.permutation(num_rows * num_blocks).astype(np.int32).reshape(num_rows, -1)
    query = chance.standard_normal((num_rows, width * groups)).astype(np.float32)
    expected = np.empty((num_rows, NUM_HEADS, groups, head_dim))
    scale = np.array([head_dim**-0.5, 0.0], np.float32)  # and no cap
    for row, length in enumerate(lens.tolist()):
        keys, values = chance.standard_normal((2, length, width)).astype(np.float32)
        for position in range(length):
            block, offset = tables[row, position // BLOCK_SIZE], position % BLOCK_SIZE
            pool[block, :, offset] = keys[position], values[position]
        heads = (length, NUM_HEADS, head_dim)
        of_row = query[row].astype(np.float64).reshape(NUM_HEADS, groups, head_dim)
        scores = np.einsum("hgd,lhd->hgl", of_row, keys.reshape(heads)) * scale[0]
        exact = np.exp(scores - scores.max(-1, keepdims=True))
        exact /= exact.sum(-1, keepdims=True)
        expected[row] = np.einsum("hgl,lhd->hgd", exact, values.reshape(heads))
    tokens, output = np.arange(num_rows, dtype=np.int32), np.empty_like(query)
    at = [one.ctypes.data for one in (query, pool, tables, tokens, lens, scale, output)]
    places = at[0], query.shape[1], at[1], 0, pool[0].size, BLOCK_SIZE
    rows = at[2], num_blocks, at[3], at[4], NUM_HEADS, groups, head_dim
    Team(run_program).run((num_rows * NUM_HEADS, ATTEND, *places, *rows, *at[5:]))
    np.testing.assert_allclose(output, expected.reshape(num_rows, -1), rtol=1e-4, atol=2e-5)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processor", OLDER)
def test_older_processors(processor: str) -> None:
    pass_on(processor, __file__)
