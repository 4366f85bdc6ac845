"""The map of one pool, one character per block, with a cursor that marks its sequence's blocks."""

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from daemon.protocol.control import BlockOwners, BlockUse, InstanceStatus
from daemon.wire.columns import no_cells
from tui.blocks import looks_of
from tui.palette import block_colour, block_sign, ink

_HELD_BY_IT = "extra"
_SIGN, _FREE_SIGN = "■", "·"


class OwnerMap(ScrollView, can_focus=True):
    """Cells row by row; arrows or the mouse move the cursor, Enter or a click opens the owner."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", show=False),
        Binding("right", "move(1, 0)", show=False),
        Binding("up", "move(0, -1)", show=False),
        Binding("down", "move(0, 1)", show=False),
        Binding("pageup", "move(0, -10)", show=False),
        Binding("pagedown", "move(0, 10)", show=False),
        Binding("enter", "choose", "open"),
    ]

    class Moved(Message):
        """The cursor is elsewhere."""

    class Chosen(Message):
        """A person chose this sequence."""

        def __init__(self, sequence: int) -> None:
            super().__init__()
            self.sequence = sequence

    def __init__(self) -> None:
        super().__init__(id="map")
        self.cursor = 0
        self.pool: InstanceStatus | None = None
        self.owners: BlockOwners | None = None
        self._looks = no_cells()

    @property
    def num_cells(self) -> int:
        """Cells of the map."""
        return len(self.pool.block_map) if self.pool is not None else 0

    @property
    def owner(self) -> int:
        """The sequence that has the block under the cursor; -1: none, or not known."""
        return self.owner_of(self.cursor)

    def owner_of(self, cell: int) -> int:
        """The sequence that has the block of a cell; -1: none, or not known."""
        owners = self.owners
        if owners is None or cell >= len(owners.owners):
            return -1
        return int(owners.owners[cell])

    def show(self, pool: InstanceStatus | None, owners: BlockOwners | None) -> None:
        """Show this pool."""
        self.pool, self.owners = pool, owners
        self._looks = no_cells() if pool is None else looks_of(pool)
        self.cursor = max(0, min(self.cursor, self.num_cells - 1))
        self._measure()
        self.refresh()

    def on_resize(self) -> None:
        """Rows have another length."""
        self._measure()

    def _measure(self) -> None:
        width = max(1, self.size.width)
        size = Size(0, -(-self.num_cells // width))
        if size != self.virtual_size:
            self.virtual_size = size

    def render_line(self, y: int) -> Strip:
        """One row of cells."""
        width = max(1, self.size.width)
        first = (y + self.scroll_offset.y) * width
        base = Style(bgcolor=ink.background)
        if self.pool is None or first >= self.num_cells:
            return Strip.blank(self.size.width, base)
        looks, owner = self._looks[first : first + width].tolist(), self.owner
        segments = [self._segment(first + place, look, owner) for place, look in enumerate(looks)]
        return Strip(segments).simplify().adjust_cell_length(self.size.width, base)

    def _segment(self, cell: int, look: int, owner: int) -> Segment:
        its = owner >= 0 and self.owner_of(cell) == owner
        colour = getattr(ink, _HELD_BY_IT) if its else block_colour(look)
        sign = _FREE_SIGN if look == BlockUse.FREE else _SIGN
        if self.app.no_color:
            sign = "@" if its else block_sign(look)
        here = cell == self.cursor and self.has_focus
        return Segment(sign, Style(color=colour, bgcolor=ink.background, reverse=here))

    def action_move(self, columns: int, rows: int) -> None:
        """Move the cursor."""
        self._place(self.cursor + columns + rows * max(1, self.size.width))

    def action_choose(self) -> None:
        """Open the owner of the block under the cursor."""
        if self.owner >= 0:
            self.post_message(self.Chosen(self.owner))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the cursor to the mouse."""
        offset = event.get_content_offset(self)
        if offset is not None:
            self._place((offset.y + self.scroll_offset.y) * max(1, self.size.width) + offset.x)

    def on_click(self) -> None:
        """Open the owner of the block under the mouse."""
        self.action_choose()

    def _place(self, cell: int) -> None:
        self.cursor = max(0, min(cell, self.num_cells - 1))
        row, top = self.cursor // max(1, self.size.width), self.scroll_offset.y
        if not top <= row < top + self.size.height:
            self.scroll_to(y=row - (0 if row < top else self.size.height - 1), animate=False)
        self.refresh()
        self.post_message(self.Moved())
