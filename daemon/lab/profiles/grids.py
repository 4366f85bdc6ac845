"""From measured cells to a complete grid that grows both ways, and to a surface on it."""

from collections.abc import Mapping

import numpy as np

from daemon.cost.curve import Surface
from daemon.lab.profiles.fitting import Values, fit_surface, growing

Cells = Mapping[tuple[int, int], float]  # (row, column) -> seconds

_WIDE = 0.25  # share of the columns' range that a row must span to show its slope
_PASSES = 5


def surface_of(cells: Cells) -> Surface:
    """A surface through the cells; `complete` fills the missing ones."""
    rows, columns, values = complete(cells)
    return fit_surface(rows, columns, smooth(values))


def complete(cells: Cells) -> tuple[list[int], list[int], Values]:
    """Rows, columns and values, with the missing ends of rows filled in.

    Attention's time grows with row * column: (chunk * tokens before) or (decodes * context). A row
    continues with its own slope where it is measured over a quarter of the range, else with that of
    the nearest such rows, in proportion to the rows. A gap inside a row is interpolated.
    """
    rows = sorted({row for row, _ in cells})
    columns = sorted({column for _, column in cells})
    values = np.full((len(rows), len(columns)), np.nan)
    row_at = {row: i for i, row in enumerate(rows)}
    column_at = {column: j for j, column in enumerate(columns)}
    for (row, column), value in cells.items():
        values[row_at[row], column_at[column]] = value
    _extend(np.asarray(rows, float), np.asarray(columns, float), values)
    return rows, columns, values


def _extend(rows: Values, columns: Values, values: Values) -> None:
    """Fill the missing cells in place."""
    rates = _rates(rows, columns, values)
    for i, row in enumerate(rows):
        known = np.flatnonzero(~np.isnan(values[i]))
        last = known[-1]
        values[i, : last + 1] = np.interp(columns[: last + 1], columns[known], values[i, known])
        beyond = columns[last + 1 :] - columns[last]
        values[i, last + 1 :] = values[i, last] + rates[i] * row * beyond


def _rates(rows: Values, columns: Values, values: Values) -> Values:
    """Seconds per row and column, of each row; for a narrow row from its wider neighbours."""
    span = columns[-1] - columns[0]
    where, rates = [], []
    for i, row in enumerate(rows):
        known = np.flatnonzero(~np.isnan(values[i]))
        first, last = known[0], known[-1]
        width = columns[last] - columns[first]
        if row and width and width >= _WIDE * span:
            middle = known[known.size // 2]
            middle = first if middle == last else middle
            rise = values[i, last] - values[i, middle]
            rates.append(max(0.0, rise / (columns[last] - columns[middle]) / row))
            where.append(row)
    return np.interp(rows, where, rates) if where else np.zeros_like(rows)


def smooth(values: Values) -> Values:
    """Values near the given ones that never fall along a row or a column."""
    grown = values.copy()
    for _ in range(_PASSES):
        grown = np.stack([growing(row) for row in grown])
        grown = np.stack([growing(column) for column in grown.T], axis=1)
    return np.maximum.accumulate(np.maximum.accumulate(grown, axis=0), axis=1)
