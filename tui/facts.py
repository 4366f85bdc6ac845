"""Facts below each other: a name, then its value."""

from collections.abc import Sequence

from rich.text import Text

from tui.palette import drawn, ink


def facts(pairs: Sequence[tuple[str, str | Text]]) -> Text:
    """One line per pair; an empty pair is an empty line."""
    width = max((len(name) for name, _ in pairs), default=0) + 2
    lines = []
    for name, value in pairs:
        line = Text(f"{name:<{width}}", ink.muted, no_wrap=True, end="")
        line.append_text(value if isinstance(value, Text) else drawn(value, ink.text))
        lines.append(line)
    return Text("\n").join(lines)
