"""Least squares with solutions that are nowhere negative."""

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_TOLERANCE = 1e-9
_RIDGE = 1e-12  # of the largest square: undetermined variables stay finite


def nonnegative(matrix: Float64, target: Float64) -> Float64:
    """The x >= 0 [n] that brings matrix [m, n] @ x nearest to target [m].

    Lawson and Hanson's active set: a variable enters where the error falls fastest, and leaves
    when it would go below zero. It begins near the end: with all variables but those that turn
    negative when none is bound.
    """
    gram, moment = matrix.T @ matrix, matrix.T @ target
    gram[np.diag_indices_from(gram)] += _RIDGE * max(1e-300, float(np.diag(gram).max(initial=0.0)))
    tolerance = _TOLERANCE * max(1.0, float(np.abs(moment).max(initial=0.0)))
    free = np.ones(matrix.shape[1], bool)
    while ((solution := _over(gram, moment, free)) < 0.0).any():
        free &= solution > 0.0
    for _ in range(3 * matrix.shape[1]):
        slope = np.where(free, -np.inf, moment - gram @ solution)
        entering = int(np.argmax(slope))
        if slope[entering] <= tolerance:
            break
        free[entering] = True
        solution = _settled(gram, moment, solution, free)
    return solution


def _over(gram: Float64, moment: Float64, free: npt.NDArray[np.bool_]) -> Float64:
    """The best solution over the free variables, negative ones among them; the others are zero."""
    solution = np.zeros(moment.size)
    solution[free] = np.linalg.solve(gram[np.ix_(free, free)], moment[free])
    return solution


def _settled(
    gram: Float64, moment: Float64, start: Float64, free: npt.NDArray[np.bool_]
) -> Float64:
    """The best solution over the free variables; those that would turn negative are
    fixed at zero.
    """
    solution = start
    while True:
        wanted = _over(gram, moment, free)
        below = np.flatnonzero(free & (wanted <= 0.0))
        if not below.size:
            return wanted
        shares = solution[below] / np.maximum(solution[below] - wanted[below], 1e-300)
        solution = solution + float(shares.min()) * (wanted - solution)
        free[below[shares <= shares.min()]] = False
        solution[~free] = 0.0
