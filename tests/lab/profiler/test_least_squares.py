"""Non-negative least squares, against its optimality conditions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.lab.profiler.least_squares import nonnegative


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_no_change_of_the_solution_is_better(columns: int, rows: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    matrix = chance.normal(size=(rows, columns))
    target = chance.normal(size=rows)
    solution = nonnegative(matrix, target)
    slope = matrix.T @ (target - matrix @ solution)
    assert (solution >= 0.0).all()
    assert (slope <= 1e-6).all(), "a variable at zero would lower the error by growing"
    assert np.abs(slope[solution > 0.0]).max(initial=0.0) < 1e-6


def test_an_exact_solution_is_found() -> None:
    chance = np.random.default_rng(3)
    matrix = chance.uniform(size=(40, 15))
    truth = np.maximum(0.0, chance.normal(size=15))
    assert np.allclose(nonnegative(matrix, matrix @ truth), truth, atol=1e-6)


def test_nothing_positive_helps() -> None:
    assert not nonnegative(np.ones((3, 2)), -np.ones(3)).any()
