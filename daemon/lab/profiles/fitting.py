"""Curves and surfaces from measured points: a knot is added where the error is largest.

Kernels compute whole tiles, so that time by tokens climbs in steps. A straight line through such
points errs most beside a step, and there the knots go; where a line is enough, none are spent.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from daemon.cost.curve import Curve, Surface

Values = npt.NDArray[np.float64]

MAX_KNOTS = 56  # plus one for each jump between them
SURFACE_KNOTS = 24  # in each direction
TOLERANCE = 0.015  # relative, at every point, before knots run out
_STEP_RISE = 0.05  # a rise from one row of a table to the next that is taken for a tile boundary
_NEAR = 1.2  # neighbours further apart than this factor show no tiles
_NOISE_SHARE = 0.02  # of the largest value: below this, errors are not worth a knot


def fit_curve(
    at: Sequence[float],
    values: Sequence[float],
    *,
    tolerance: float = TOLERANCE,
    max_knots: int = MAX_KNOTS,
) -> Curve:
    """A curve through the fewest points that predict the others within `tolerance`.

    Points with equal `at` count with their median; values are first made to grow with `at` by
    isotonic regression, since more tokens never take less time, though measurements may say so. A
    rise of 5 % between close neighbours, three times that of the points around, becomes a jump
    right behind the lower one: kernels round up to whole tiles, so that one more token costs a
    whole tile.
    """
    x, y = medians(at, values)
    y = growing(y)
    chosen = {0, x.size - 1}
    while len(chosen) < min(max_knots, x.size):
        order = sorted(chosen)
        error = np.abs(np.interp(x, x[order], y[order]) - y) / y
        worst = int(np.argmax(error))
        if error[worst] <= tolerance:
            break
        chosen.add(worst)
    return _with_jumps(x, y, sorted(chosen))


def _with_jumps(x: Values, y: Values, chosen: list[int]) -> Curve:
    knots: dict[float, float] = {}
    for index in chosen:
        knots[float(x[index])] = rounded(y[index])
        after = index + 1
        if after in chosen and _is_jump(x, y, index) and x[after] - x[index] > 1.0:
            knots[float(x[index]) + 1.0] = rounded(y[after])
    at = sorted(knots)
    return Curve(tuple(at), tuple(knots[place] for place in at))


def _is_jump(x: Values, y: Values, index: int) -> bool:
    """Whether time rises from this point to the next as at a tile boundary."""
    if x[index + 1] > _NEAR * x[index]:
        return False
    low, high = max(index - 1, 0), min(index + 2, x.size - 1)
    rise = y[index + 1] / y[index] - 1.0
    around = max(y[index] / y[low], y[high] / y[index + 1]) - 1.0
    return bool(rise > _STEP_RISE and rise > 3.0 * around)


def fit_surface(
    rows: Sequence[float],
    columns: Sequence[float],
    values: Values,
) -> Surface:
    """A surface on some of the grid's rows and columns, chosen by the largest error.

    `values[i, j]` belongs to (`rows[i]`, `columns[j]`); the grid is complete. Errors are relative,
    but cells under 2 % of the largest value are compared to that.
    """
    x, y = np.asarray(rows, float), np.asarray(columns, float)
    scale = np.maximum(values, _NOISE_SHARE * values.max())
    down, across = {0, x.size - 1}, {0, y.size - 1}
    while True:
        order, places = sorted(down), sorted(across)
        error = np.abs(_bilinear(x, y, order, places, values) - values) / scale
        if error.max() <= 2 * TOLERANCE:
            break
        row, column = divmod(int(np.argmax(error)), y.size)
        wanted = _better(error, row, column, down, across)
        if wanted is None:
            break
        (down if wanted[0] else across).add(wanted[1])
    return Surface(
        tuple(float(x[i]) for i in order),
        tuple(float(y[j]) for j in places),
        tuple(tuple(rounded(values[i, j]) for j in places) for i in order),
    )


def _better(
    error: Values, row: int, column: int, down: set[int], across: set[int]
) -> tuple[bool, int] | None:
    """Whether a row (True) or a column is the better new knot, and its index; None when none is."""
    row_free = row not in down and len(down) < SURFACE_KNOTS
    column_free = column not in across and len(across) < SURFACE_KNOTS
    by_row = float(error[row].mean()) if row_free else -1.0
    by_column = float(error[:, column].mean()) if column_free else -1.0
    if by_row < 0.0 and by_column < 0.0:
        return None
    return (True, row) if by_row >= by_column else (False, column)


def _bilinear(x: Values, y: Values, order: list[int], places: list[int], values: Values) -> Values:
    """The grid by bilinear interpolation between chosen rows and columns."""
    part = values[np.ix_(order, places)]
    wide = np.stack([np.interp(y, y[places], row) for row in part])
    return np.stack([np.interp(x, x[order], column) for column in wide.T], axis=1)


def medians(at: Sequence[float], values: Sequence[float]) -> tuple[Values, Values]:
    """The points in order of `at`, each place once with the median of its values."""
    x, y = np.asarray(at, float), np.asarray(values, float)
    places = np.unique(x)
    return places, np.asarray([np.median(y[x == place]) for place in places])


def growing(values: Values) -> Values:
    """The nearest values that never fall (isotonic regression by pooling neighbours)."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            mean, count = means.pop(), counts.pop()
            means[-1] = (means[-1] * counts[-1] + mean * count) / (counts[-1] + count)
            counts[-1] += count
    return np.repeat(means, counts)


def smoothed(values: Values, width: int) -> Values:
    """Running median of `width` neighbours (fewer at the ends)."""
    half = width // 2
    return np.asarray(
        [np.median(values[max(0, i - half) : i + half + 1]) for i in range(values.size)]
    )


def mape(predicted: Iterable[float], measured: Iterable[float]) -> float:
    """Mean absolute error over the measured values."""
    pairs = list(zip(predicted, measured, strict=True))
    return float(np.mean([abs(guess - truth) / truth for guess, truth in pairs]))


def rounded(value: float) -> float:
    """Five significant digits: more than any table has."""
    return float(f"{float(value):.5g}")
