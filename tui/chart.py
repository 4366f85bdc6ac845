"""An area chart of one series: one value per column, eight steps of height per line."""

import math
from collections.abc import Callable, Sequence

from rich.text import Text

from tui.lines import Lines
from tui.palette import blend, ink

_LEVELS = " ▁▂▃▄▅▆▇█"
_STEPS = 8
_FOOT_SHARE = 0.45  # how strong the colour is at the foot of a chart

Value = float | None


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 3, 5 times a power of ten at or above `value`; 1 for nothing."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 5, 10, 20) if step * power >= value * 0.999999)


def height_of(value: Value, ceiling: float, height: int) -> int:
    """The height of a value, in eighths of a line; any value above zero has at least one."""
    if value is None or value <= 0:
        return 0
    return max(1, min(height * _STEPS, round(value / ceiling * height * _STEPS)))


def chart_lines(values: Sequence[Value], ceiling: float, width: int, height: int) -> list[str]:
    """`height` lines of `width` block characters, the newest value at the right edge."""
    recent = list(values[-width:])
    columns = [0] * (width - len(recent)) + [height_of(v, ceiling, height) for v in recent]
    lines = []
    for row in range(height):
        floor = (height - 1 - row) * _STEPS
        lines.append("".join(_LEVELS[min(max(c - floor, 0), _STEPS)] for c in columns))
    return lines


class Chart(Lines):
    """One series with its newest figure in the title and its scale below; `colour` is an ink."""

    def __init__(self, title: str, colour: str, describe: Callable[[Value], str]) -> None:
        super().__init__(classes="chart")
        self.border_title = title
        self._title = title
        self._colour = colour
        self._describe = describe
        self._values: Sequence[Value] = ()
        self._label = ("", "")
        self._words = ("", "")

    def update_from(self, values: Sequence[Value], newest: Value) -> None:
        """Show the series; `newest` is the (smoothed) figure in the title."""
        self._values = values
        colour = getattr(ink, self._colour)
        words = (self._describe(newest), colour)
        if words != self._words:
            self._words = words
            title = Text(f"{self._title}  ", ink.muted)
            self.border_title = title.append(words[0], f"bold {colour}")
        self._show_scale()
        self.redraw()

    def on_resize(self) -> None:
        """Show as much of the series as fits the new width."""
        self._show_scale()
        super().on_resize()

    def lines(self, width: int, height: int) -> list[Text]:
        """The part of the series that fits, scaled to its highest value."""
        lines = chart_lines(self._values, self._ceiling(), width, height)
        shares = [1 - (1 - _FOOT_SHARE) * row / height for row in range(height)]
        drawn = zip(lines, shares, strict=True)
        colour = getattr(ink, self._colour)
        return [Text(line, blend(colour, share)) for line, share in drawn]

    def _ceiling(self) -> float:
        visible = self._values[-max(1, self.size.width) :]
        return nice_ceiling(max((value for value in visible if value is not None), default=0.0))

    def _show_scale(self) -> None:
        known = any(value for value in self._values)
        text = f"scale {self._describe(self._ceiling())}" if known else "nothing yet"
        label = (text, ink.faint)
        if label != self._label:
            self._label = label
            self.border_subtitle = Text(*label)
