"""The picture: who has both a shorter mean and shorter gaps than others, a panel for each cell."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.frontier.measures import GAP, LATENCY, CellFigures, Results, WayFigures
from benchmarks.studies.scheduling import PAUSE_S
from daemon.lab.report.figures import AMBER, BLUE, INK, TEAL, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

IN_A_ROW = 3
PREDICTOR = "mean"  # of the line
COLORS = {"gittins": BLUE, "speculative": AMBER, "mlfq": TEAL}
OFFSETS = ((5, 3), (5, -9), (-5, 3), (-5, -9), (0, 7), (0, -13), (9, 12), (9, -18), (-9, 12))
"""Points right of and above a mark where its name may stand, the best first."""

ALONG = 8
"""Parts of each piece of the line that names keep clear of."""


class Mark(NamedTuple):
    """A way in a panel."""

    text: str
    color: str
    gap_s: float
    latency_s: float


def plot(results: Results, path: Path) -> None:
    """Draw all cells into an SVG or PNG file, by suffix. Raises ReportError."""
    save(lambda: _draw(results.cells), path)


def line_of(done: CellFigures) -> list[Mark]:
    """`gittins` with one predictor by its pause, shortest first; none where only one was run."""
    ways = [(_pause_s(one), one) for one in done.ways if _told(one) == PREDICTOR]
    paced = sorted((pause_s, one.name, one) for pause_s, one in ways if pause_s)
    if len(paced) < 2:
        return []
    return [_mark(one, f"{pause_s:g} s" if pause_s < inf else "inf") for pause_s, _, one in paced]


def points_of(done: CellFigures) -> list[Mark]:
    """All others; of `gittins` with another predictor only the default pause."""
    lined = bool(line_of(done))
    return [
        _mark(one, one.name)
        for one in done.ways
        if _pause_s(one) in (0.0, PAUSE_S)
        and not (lined and _pause_s(one) and _told(one) == PREDICTOR)
    ]


def _mark(way: WayFigures, text: str) -> Mark:
    color = COLORS.get(_policy(way).partition(":")[0], INK)
    return Mark(text, color, way.value(GAP), way.value(LATENCY))


def _policy(way: WayFigures) -> str:
    return way.name.partition(" ")[0]


def _told(way: WayFigures) -> str:
    return way.name.partition(" ")[2]


def _pause_s(way: WayFigures) -> float:
    """The promise; 0 where a policy makes none."""
    name, _, pause_s = _policy(way).partition(":")
    return float(pause_s or PAUSE_S) if name == "gittins" else 0.0


def _draw(cells: Sequence[CellFigures]) -> "Figure":
    from matplotlib.figure import Figure

    columns = min(IN_A_ROW, len(cells))
    rows = ceil(len(cells) / columns)
    figure = Figure(figsize=(5.2 * columns, 5.0 * rows), layout="constrained")
    panels: list[Axes] = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes, done in zip(panels, cells, strict=False):
        _panel(axes, done)
    for axes in panels[len(cells) :]:
        axes.axis("off")
    figure.draw_without_rendering()  # places are known from here on
    for axes, done in zip(panels, cells, strict=False):
        _name(axes, line_of(done), points_of(done))
    return figure


def _panel(axes: "Axes", done: CellFigures) -> None:
    line, points = line_of(done), points_of(done)
    axes.set_title(f"{done.cell} at {done.load:g} of its capacity")
    axes.set_xlabel("P99 of the longest gap, s")
    axes.set_ylabel("mean normalised latency, s/token")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    seen = [one.latency_s for one in (*line, *points)]
    low, high = min(seen) / 1.3, max(seen) * 1.5
    axes.set_ylim(low, high)
    axes.set_yticks([tick for tick in _ticks() if low <= tick <= high])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.margins(x=0.2)
    if line:
        told = f"gittins {PREDICTOR}, by max_pause_s"
        gaps, latencies = [one.gap_s for one in line], [one.latency_s for one in line]
        axes.plot(gaps, latencies, "-o", color=BLUE, markersize=4, label=told)
        axes.legend(loc="upper right", fontsize=7.5)
    for one in points:
        axes.plot([one.gap_s], [one.latency_s], "D", color=one.color, markersize=4)


def _ticks() -> Iterator[float]:
    return (digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 3, 5, 7))


def _name(axes: "Axes", line: Sequence[Mark], points: Sequence[Mark]) -> None:
    """Write each name where it covers the least of marks, names and the line."""
    on_line, apart = _places(axes, line), _places(axes, points)
    taken = [_around(*place) for place in (*on_line, *apart)]
    for (x, y), (next_x, next_y) in pairwise(on_line):
        shares = (part / ALONG for part in range(1, ALONG))
        taken += [_around(x + share * (next_x - x), y + share * (next_y - y)) for share in shares]
    for one in (*line, *points):
        boxes = []
        for offset in OFFSETS:
            text = _write(axes, one, offset)
            boxes.append(text.get_window_extent())
            text.remove()
        covered = [box.count_overlaps(taken) for box in boxes]
        best = covered.index(min(covered))
        _write(axes, one, OFFSETS[best])
        taken.append(boxes[best])


def _places(axes: "Axes", marks: Sequence[Mark]) -> list[tuple[float, float]]:
    """Where they are in the picture."""
    if not marks:
        return []
    at = axes.transData.transform([(one.gap_s, one.latency_s) for one in marks])
    return [(float(x), float(y)) for x, y in at]


def _write(axes: "Axes", mark: Mark, offset: tuple[int, int]) -> "Annotation":
    side = "left" if offset[0] > 0 else "right" if offset[0] < 0 else "center"
    return axes.annotate(
        plain(mark.text),
        (mark.gap_s, mark.latency_s),
        xytext=offset,
        textcoords="offset points",
        ha=side,
        fontsize=7,
        color=mark.color,
    )


def _around(x: float, y: float) -> "Bbox":
    from matplotlib.transforms import Bbox

    return Bbox.from_extents(x - 3, y - 3, x + 3, y + 3)
