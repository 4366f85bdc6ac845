"""A widget of lines of text that repaints only the changed ones."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Lines(Widget):
    """A base class: a subclass gives the lines; `redraw` compares them with the screen."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._lines: list[Text] = []

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """At most `height` lines of at most `width` cells; longer ones are cut."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Bring the screen up to date."""
        width, height = self.size
        if not width or not height:
            return
        fresh = list(self.lines(width, height))
        fresh += [Text()] * (height - len(fresh))
        before, self._lines = self._lines, fresh
        if len(before) != len(fresh):
            self.refresh()
            return
        pairs = enumerate(zip(before, fresh, strict=True))
        changed = [Region(0, y, width, 1) for y, (old, new) in pairs if _differ(old, new)]
        if changed:
            self.refresh(*changed)

    def on_resize(self) -> None:
        """Other lines fit the new size."""
        self._lines = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        """One line."""
        style, width = self.rich_style, self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, style)
        segments = self._lines[y].render(self.app.console)
        return Strip(Segment.apply_style(segments, style)).adjust_cell_length(width, style)


def _differ(old: Text, new: Text) -> bool:
    return (old.plain, old.style, old.spans) != (new.plain, new.style, new.spans)
