"""The columns of tables: their cells, and the choice of those that fit, with their widths. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Row = TypeVar("Row")


class Cell(NamedTuple):
    """The content of one cell."""

    text: str
    style: str = ""  # a colour; "" is that of plain text


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: its width, its cell for a row, and its rank when columns are dropped
    or widened.
    """

    key: str
    label: str
    width: int
    cell: Callable[[Row, int], Cell]
    left: bool = False  # aligned left, else right
    rank: int = 0  # the highest rank is dropped first where space is short; 0 is always kept
    grow: int = 0  # most cells that it takes of spare space


class FittedColumn(NamedTuple):
    """A column's key, the width of its text, and of its text with the gap after it."""

    key: str
    width: int
    padded: int


def fit(columns: Sequence[Column[Row]], available: int) -> list[FittedColumn]:
    """The columns that fit in `available` cells, with their widths; gaps are one or two cells."""
    kept = list(columns)
    while _needed(kept, 1) > available and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    gap = 2 if _needed(kept, 2) <= available else 1
    widths = _grown(kept, max(0, available - _needed(kept, gap)))
    sized = zip(kept, widths, strict=True)
    fitted = [FittedColumn(column.key, width, width + gap) for column, width in sized]
    return [*fitted[:-1], fitted[-1]._replace(padded=fitted[-1].width)]


def _grown(columns: Sequence[Column[Row]], spare: int) -> list[int]:
    """The columns' widths with `spare` cells shared evenly by those that may grow."""
    widths = {column.key: column.width for column in columns}
    growing = sorted((c for c in columns if c.grow), key=lambda column: column.grow)
    for index, column in enumerate(growing):
        extra = min(column.grow, spare // (len(growing) - index))
        widths[column.key] += extra
        spare -= extra
    return list(widths.values())


def _needed(columns: Sequence[Column[Row]], gap: int) -> int:
    return sum(column.width for column in columns) + gap * (len(columns) - 1)
