"""The style of figures, and writing them: the same data give the same bytes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.base.files import appearing
from daemon.lab.report.errors import ReportError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")

INK, MUTED, GRID = "#1f2733", "#6b7788", "#e4e8ee"
BLUE, TEAL, AMBER = "#2c6fbb", "#1a9a86", "#d08a1c"
"""Blue: latencies and running sequences. Amber: waiting and idle. Teal: tokens."""

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "llmd",  # without it, ids in the file are random
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.color": MUTED,
    "ytick.labelsize": 8.5,
}


def check_plot(path: Path) -> None:
    """Raise ReportError where no figure is drawn into this file, whatever the run."""
    if path.suffix.lower() not in SUFFIXES:
        raise ReportError(f"{path}: a plot is written as {' or '.join(SUFFIXES)}")
    try:
        from matplotlib import rc_context  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ReportError(
            "plots need matplotlib, which is not installed: "
            f"{sys.executable} -m pip install matplotlib"
        ) from error


def save(draw: "Callable[[], Figure]", path: Path) -> None:
    """Write the figure that `draw` makes as SVG or PNG, by suffix.

    Raises ReportError where matplotlib is missing, the suffix is another or the file cannot be
    written.
    """
    check_plot(path)
    from matplotlib import rc_context

    suffix = path.suffix.lower()
    with rc_context(_STYLE):
        undated = {"Date": None} if suffix == ".svg" else {"Software": None}
        try:
            with appearing(path) as partial:
                draw().savefig(partial, dpi=150, metadata=undated)
        except OSError as error:
            raise ReportError(f"{path}: {error.strerror}") from error


def plain(text: str) -> str:
    """Text in which a dollar sign does not begin a formula."""
    return text.replace("$", r"\$")
