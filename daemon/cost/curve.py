"""Measured curves and surfaces: values at knots, straight lines between them.

A jump (a tile boundary) is two knots with a distance of 1. Below the first knot its value holds;
beyond the last, the last slope continues.
"""

from bisect import bisect_right
from collections.abc import Callable

import msgspec


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function of one count. `at` grows strictly; one knot makes a constant."""

    at: tuple[float, ...]
    value: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.at or len(self.at) != len(self.value):
            raise ValueError("a curve needs as many values as knots, and at least one")
        if any(b <= a for a, b in zip(self.at, self.at[1:], strict=False)):
            raise ValueError("a curve's knots must grow")

    def __call__(self, x: float) -> float:
        """The value at `x`."""
        left, share = _place(self.at, x)
        return _between(self.value, left, share)


class Surface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function of two counts, bilinear between the knots of a grid; `value[i][j]`."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    value: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if len(self.value) != len(self.rows) or not self.rows or not self.columns:
            raise ValueError("a surface needs one row of values for each of its row knots")
        if any(len(row) != len(self.columns) for row in self.value):
            raise ValueError("a surface's rows need one value for each of its column knots")

    def __call__(self, row: float, column: float) -> float:
        """The value at (`row`, `column`)."""
        top, share = _place(self.rows, row)
        left, across = _place(self.columns, column)
        upper = _between(self.value[top], left, across)
        if share == 0.0:
            return upper
        return upper + share * (_between(self.value[top + 1], left, across) - upper)

    def across(self, row: float) -> Callable[[float], float]:
        """The values at one row, by the column."""
        columns, last = self.columns, len(self.columns) - 1
        top, share = _place(self.rows, row)
        upper, lower = self.value[top], self.value[top + 1 if share else top]

        def at(column: float) -> float:
            if last == 0 or column <= columns[0]:
                left, part, right = 0, 0.0, 0
            else:
                right = min(bisect_right(columns, column), last)
                left = right - 1
                begin = columns[left]
                part = (column - begin) / (columns[right] - begin)
            value, below = upper[left], lower[left]
            value += part * (upper[right] - value)
            if share == 0.0:
                return value
            return value + share * (below + part * (lower[right] - below) - value)

        return at


def _place(knots: tuple[float, ...], x: float) -> tuple[int, float]:
    """The knot to the left of `x`, and the share of the way to the next one."""
    last = len(knots) - 1
    if last == 0 or x <= knots[0]:
        return 0, 0.0
    left = min(bisect_right(knots, x), last) - 1
    return left, (x - knots[left]) / (knots[left + 1] - knots[left])


def _between(values: tuple[float, ...], left: int, share: float) -> float:
    if share == 0.0:
        return values[left]
    return values[left] + share * (values[left + 1] - values[left])
