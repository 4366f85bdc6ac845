"""Numbers and tables for people: three digits with their unit, and aligned columns."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

UNKNOWN = "-"


def three_digits(value: float | None, unit: str = "") -> str:
    """Three significant digits and a unit, whole numbers from 100 on: 0.0123, 7.50 W, 12,345 J."""
    if value is None:
        return UNKNOWN
    suffix = f" {unit}" if unit else ""
    size = abs(value)
    if size == 0:
        return f"0{suffix}"
    if size >= 99.95:
        return f"{value:,.0f}{suffix}"
    decimals = 1 if size >= 9.995 else 2 if size >= 0.9995 else 3 if size >= 0.09995 else 4
    return f"{value:.{decimals}f}{suffix}" if size >= 1e-3 else f"{value:.2e}{suffix}"


def seconds(value: float | None) -> str:
    """A time: 850 us, 12.5 ms, 1.24 s."""
    if value is None or value == 0:
        return three_digits(value, "s")
    scale, unit = next(
        (pair for pair in ((1, "s"), (1e3, "ms")) if abs(value) * pair[0] >= 0.9995), (1e6, "us")
    )
    return three_digits(value * scale, unit)


def percent(fraction: float | None) -> str:
    """A share of 0..1: 45.0 %."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.1f} %"


def printable(text: str) -> str:
    """`text` without control characters, which a label from a file may have."""
    return "".join(c if c.isprintable() else "?" for c in text)


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Printable lines of at most `width` characters; longer ones go on, indented, below."""
    return [
        part
        for line in lines
        for part in textwrap.wrap(printable(line), width, subsequent_indent="    ") or [""]
    ]


def aligned(rows: Sequence[Sequence[str]], gap: int = 2) -> list[str]:
    """Rows of cells as lines: the first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def plain(value: Any) -> Any:
    """Convert numpy's numbers to Python's for JSON: drivers may leave them in a log."""
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"no JSON for {type(value).__name__}")
