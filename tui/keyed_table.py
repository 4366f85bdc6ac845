"""A table of rows with keys, drawn line by line: only changed cells are painted.

Rows out of sight cost nothing: their cells are made when they come into sight.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Generic

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from tui.columns import Cell, Column, FittedColumn, Row, fit
from tui.format import BAR_EMPTY
from tui.palette import ink

_SCROLLBAR_CELLS = 2  # kept free, with a gap, so that the scrollbar moves nothing


@lru_cache(maxsize=256)
def _style(colour: str, background: str) -> Style:
    return Style(color=colour, bgcolor=background)


class KeyedTable(ScrollView, Generic[Row], can_focus=True):
    """Rows come and go by their key; `show` compares them with the screen.

    Until a person moves the cursor it stays on the first row; then it stays with its row for as
    long as the row exists, wherever it goes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", show=False),
        Binding("enter", "choose", "open", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1_000_000)", show=False),
        Binding("end", "move(1_000_000)", show=False),
    ]

    class Chosen(Message):
        """A person pressed Enter on a row, or clicked it while the cursor was there."""

        def __init__(self, table: Widget, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> Widget:
            """The table, for `on` selectors."""
            return self.table

    def __init__(self, columns: Sequence[Column[Row]], *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.rows: list[tuple[str, Row]] = []
        self.cursor_key = ""  # the chosen row
        self._places: dict[str, int] = {}
        self._specs = {column.key: column for column in columns}
        self._fitted: list[FittedColumn] = []
        self._hidden: frozenset[str] = frozenset()
        self._painted: dict[int, tuple[Cell, ...]] = {}  # by line of the screen, the first is 1

    @property
    def cursor(self) -> int:
        """The cursor's place among the rows."""
        return self._places.get(self.cursor_key, 0)

    def cell(self, key: str, column: str) -> Cell:
        """A cell's content, in sight or not. Raises KeyError for a row that does not exist."""
        width = next(fitted.width for fitted in self._fitted if fitted.key == column)
        return self._specs[column].cell(self.rows[self._places[key]][1], width)

    def show(self, rows: list[tuple[str, Row]]) -> None:
        """Show these rows, in this order. Keys must differ."""
        old = self.cursor
        self.rows = rows
        self._places = {key: place for place, (key, _) in enumerate(rows)}
        if self.cursor_key not in self._places and self.cursor_key and rows:
            self.cursor_key = rows[min(old, len(rows) - 1)][0]
        size = Size(0, len(rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        if not self.size.height:
            self._painted.clear()
        self._repaint_changed()
        if self.cursor != old:
            self._keep_in_sight()
            self.refresh()

    def hide(self, keys: frozenset[str]) -> None:
        """Drop these columns, whatever room there is."""
        if keys != self._hidden:
            self._hidden = keys
            self._fit()

    # The screen

    def on_resize(self) -> None:
        """Choose the columns anew."""
        self._fit()

    def _fit(self) -> None:
        columns = [spec for key, spec in self._specs.items() if key not in self._hidden]
        room = self.content_region.width
        self._fitted = fit(columns, room - _SCROLLBAR_CELLS) if room > 0 else []
        self._painted.clear()
        self.refresh()

    def _cells(self, row: Row) -> tuple[Cell, ...]:
        return tuple(self._specs[c.key].cell(row, c.width) for c in self._fitted)

    def _at(self, line: int) -> int:
        """The row on a line of the screen; it may be beyond the last."""
        return line - 1 + self.scroll_offset.y

    def _repaint_changed(self) -> None:
        """Repaint the changed cells of the rows in sight."""
        changed = []
        for line in range(1, self.size.height):
            place = self._at(line)
            cells = self._cells(self.rows[place][1]) if place < len(self.rows) else ()
            before = self._painted.get(line)
            if cells != before:
                changed.append(self._changed(line, before, cells))
                self._painted[line] = cells
        if changed:
            self.refresh(*changed)

    def _changed(
        self, line: int, before: tuple[Cell, ...] | None, cells: tuple[Cell, ...]
    ) -> Region:
        """The stretch of a line from its first changed cell to the last."""
        if before is None or len(before) != len(cells):
            return Region(0, line, self.size.width, 1)
        pairs = zip(before, cells, strict=True)
        places = [place for place, (old, new) in enumerate(pairs) if old != new]
        starts = [0]
        for column in self._fitted:
            starts.append(starts[-1] + column.padded)
        left, right = starts[places[0]], starts[places[-1] + 1]
        return Region(left, line, right - left, 1)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Forget the painted rows: others are in sight."""
        self._painted.clear()
        super().watch_scroll_y(old_value, new_value)

    def render_line(self, y: int) -> Strip:
        """One line of the screen: the labels, then one row per line."""
        background = ink.background
        width = self.size.width
        if y == 0:
            labels = [Cell(self._specs[c.key].label, ink.muted) for c in self._fitted]
            strip = self._strip(labels, background)
            return strip.adjust_cell_length(width, _style(ink.muted, background))
        place = self._at(y)
        if place >= len(self.rows):
            self._painted[y] = ()
            return Strip.blank(width, _style(ink.text, background))
        if place == self.cursor and self.has_focus:
            background = ink.cursor
        cells = self._painted.get(y, ())
        if len(cells) != len(self._fitted):
            cells = self._painted[y] = self._cells(self.rows[place][1])
        strip = self._strip(cells, background)
        return strip.adjust_cell_length(width, _style(ink.text, background))

    def _strip(self, cells: Sequence[Cell], background: str) -> Strip:
        segments = []
        for column, cell in zip(self._fitted, cells, strict=True):
            text = cell.text
            if len(text) > column.width:
                text = text[: column.width - 1] + "…"
            left = self._specs[column.key].left
            text = text.ljust(column.width) if left else text.rjust(column.width)
            style = _style(cell.style or ink.text, background)
            segments += _with_faint_bar(text.ljust(column.padded), style, background)
        return Strip(segments)

    # Keys and clicks

    def _place_cursor(self, place: int) -> None:
        if self.rows:
            self.cursor_key = self.rows[max(0, min(place, len(self.rows) - 1))][0]
            self._keep_in_sight()
            self.refresh()

    def _keep_in_sight(self) -> None:
        top, height = self.scroll_offset.y, self.size.height - 1
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    def action_move(self, rows: int) -> None:
        """Move the cursor up or down."""
        self._place_cursor(self.cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by the number of rows in sight."""
        self._place_cursor(self.cursor + pages * max(1, self.size.height - 2))

    def action_choose(self) -> None:
        """Open the row under the cursor."""
        if self.rows:
            self.post_message(self.Chosen(self, self.rows[self.cursor][0]))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor; a second click opens the row."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y < 1 or self._at(offset.y) >= len(self.rows):
            return
        place = self._at(offset.y)
        if self.cursor_key and place == self.cursor:
            self.action_choose()
        self._place_cursor(place)

    def watch_has_focus(self, _has_focus: bool) -> None:
        """Show the cursor while the keys are here."""
        super().watch_has_focus(_has_focus)
        self.refresh()


def _with_faint_bar(text: str, style: Style, background: str) -> list[Segment]:
    """The text in one style, except that the empty part of a bar in it is faint."""
    start = text.find(BAR_EMPTY)
    if start < 0:
        return [Segment(text, style)]
    end = text.rfind(BAR_EMPTY) + 1
    faint = Segment(text[start:end], _style(ink.faint, background))
    return [Segment(text[:start], style), faint, Segment(text[end:], style)]
