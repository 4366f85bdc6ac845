"""A table of rows with keys that changes only those cells whose text or style changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from tui.palette import TEXT, drawn

Row = TypeVar("Row")

_SCROLLBAR_CELLS = 2  # kept free, with a gap, so that its coming and going moves nothing


class Cell(NamedTuple):
    """What one cell shows."""

    text: str
    style: str = TEXT


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: how wide, how it is drawn from a row, and when it gives way or grows."""

    key: str
    label: str
    width: int
    cell: Callable[[Row, int], Cell]
    left: bool = False  # aligned left, else right
    rank: int = 0  # the highest rank is left out first where space lacks; 0 always stays
    grow: int = 0  # cells that it takes at most of the space left over


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


class KeyedTable(DataTable[Text], Generic[Row]):
    """Rows come and go by their key; `show` compares with what is on the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "focus", key_display="tab")
    ]

    def __init__(self, columns: Sequence[Column[Row]], *, id: str) -> None:  # noqa: A002
        super().__init__(
            id=id, cursor_type="row", cell_padding=0, cursor_foreground_priority="renderable"
        )
        self._specs = {column.key: column for column in columns}
        self._fitted: list[FittedColumn] = []
        self._hidden: frozenset[str] = frozenset()
        self._rows: list[tuple[str, Row]] = []
        self._shown: dict[str, tuple[Cell, ...]] = {}
        self._order: list[str] = []

    def show(self, rows: list[tuple[str, Row]]) -> None:
        """Show these rows, in this order. Keys must differ."""
        self._rows = rows
        if not self._fitted:
            return
        wanted = {key: self._cells(row) for key, row in rows}
        self._drop([key for key in self._order if key not in wanted])
        for key, cells in wanted.items():
            self._show_row(key, cells)
        order = list(wanted)
        if order != self._order:
            self._arrange(order)

    def hide(self, keys: frozenset[str]) -> None:
        """Leave out these columns, however much room there is."""
        if keys != self._hidden:
            self._hidden = keys
            if self._fitted:
                self.on_resize()

    def on_resize(self) -> None:
        """Choose the columns anew."""
        columns = [spec for key, spec in self._specs.items() if key not in self._hidden]
        fitted = fit(columns, self.content_region.width - _SCROLLBAR_CELLS)
        if fitted == self._fitted:
            return
        self._fitted = fitted
        self._shown, self._order = {}, []
        self.clear(columns=True)
        for column in fitted:
            spec = self._specs[column.key]
            self.add_column(self._padded(spec.label, column), width=column.padded, key=column.key)
        self.show(self._rows)

    def _drop(self, gone: list[str]) -> None:
        """Remove these rows; where most go, it is far quicker to start anew."""
        if 2 * len(gone) > len(self._order):
            self.clear()
            self._shown, self._order = {}, []
            return
        for key in gone:
            self.remove_row(key)
            del self._shown[key]
            self._order.remove(key)

    def _cells(self, row: Row) -> tuple[Cell, ...]:
        return tuple(self._specs[c.key].cell(row, c.width) for c in self._fitted)

    def _padded(self, text: str, column: FittedColumn, style: str = "") -> Text:
        spec = self._specs[column.key]
        cut = text if len(text) <= column.width else text[: column.width - 1] + "…"
        aligned = cut.ljust(column.width) if spec.left else cut.rjust(column.width)
        return drawn(aligned.ljust(column.padded), style)

    def _show_row(self, key: str, cells: tuple[Cell, ...]) -> None:
        old = self._shown.get(key)
        self._shown[key] = cells
        if old is None:
            texts = zip(cells, self._fitted, strict=True)
            self.add_row(*[self._padded(cell.text, c, cell.style) for cell, c in texts], key=key)
            self._order.append(key)
            return
        for column, before, now in zip(self._fitted, old, cells, strict=True):
            if before != now:
                self.update_cell(key, column.key, self._padded(now.text, column, now.style))

    def _arrange(self, order: list[str]) -> None:
        """Sort the rows as `order` says; the cursor stays where it is on the screen."""
        first = self._fitted[0].key
        place = {id(self.get_cell(key, first)): index for index, key in enumerate(order)}
        self.sort(first, key=lambda cell: place[id(cell)])
        self._order = order
