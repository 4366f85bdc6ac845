"""A story on the screen: the strip of a life, and a row for each mark."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from daemon.protocol.control import Mark, Story
from tui.columns import Cell, Column
from tui.format import duration, latency
from tui.keyed_table import KeyedTable
from tui.lines import Lines
from tui.palette import ink
from tui.story import STRETCH_LOOK, mark_colour, sentence, stretches, strip_cells, totals


class StoryRow(NamedTuple):
    """A mark, its time after the arrival and after the previous mark, and its words."""

    mark: Mark
    at_s: float
    gap_s: float
    words: str


def _gap(row: StoryRow, _width: int) -> Cell:
    return Cell(f"+{latency(row.gap_s)}" if row.gap_s > 0 else "", ink.muted)


def _words(row: StoryRow, _width: int) -> Cell:
    return Cell(row.words, getattr(ink, mark_colour(row.mark.what)))


COLUMNS: list[Column[StoryRow]] = [
    Column("at", "after", 9, lambda r, _: Cell(f"{r.at_s:.3f} s")),
    Column("gap", "since", 9, _gap, rank=1),
    Column("words", "what", 32, _words, left=True, grow=100),
]


class StoryTable(KeyedTable[StoryRow]):
    """One row per mark, oldest first."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="story")
        self.border_title = "its story"

    def update_from(self, story: Story | None, instances: Sequence[str]) -> None:
        """Show this story; the instances' names by index."""
        rows: list[tuple[str, StoryRow]] = []
        marks = story.marks if story is not None else ()
        for index, mark in enumerate(marks):
            first_s, before_s = marks[0].time_s, marks[max(0, index - 1)].time_s
            words = sentence(mark, story, instances) if story is not None else ""
            row = StoryRow(mark, mark.time_s - first_s, mark.time_s - before_s, words)
            rows.append((str(index), row))
        self.show(rows)
        dropped = story.num_dropped if story is not None else 0
        left_out = f" · {dropped} left out of the middle" if dropped else ""
        text = f"{len(marks)} marks{left_out}" if marks else "not told"
        if self.border_subtitle != text:
            self.border_subtitle = text


class LifeStrip(Lines):
    """The whole life as one line of characters, and below it the total time of each state."""

    def __init__(self) -> None:
        super().__init__(id="life")
        self.border_title = "its life"
        self._story: Story | None = None

    def update_from(self, story: Story | None) -> None:
        """Show this story."""
        self._story = story
        self.redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """The strip, then its legend."""
        story = self._story
        if story is None or not story.marks:
            return [Text("not told", ink.faint)]
        found = stretches(story)
        strip, legend = Text(end=""), Text(end="")
        for kind in strip_cells(found, width):
            sign, colour = STRETCH_LOOK[kind]
            strip.append(sign, getattr(ink, colour))
        for kind, seconds in totals(found).items():
            sign, colour = STRETCH_LOOK[kind]
            legend.append(f"{sign} {kind} ", getattr(ink, colour))
            legend.append(f"{duration(seconds)}   ", ink.muted)
        return [strip, legend][:height]
