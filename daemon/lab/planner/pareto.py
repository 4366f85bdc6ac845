"""The Pareto front of cost against latency, and its plot (Vidur's Figure 5)."""

from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

from daemon.config.cores import written_ranges
from daemon.lab.report.figures import BLUE, MUTED, plain, save
from daemon.lab.report.numbers import seconds, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR = (0.12, 0.045)
"""Shares of the plot's width and height that a number beside a point may take."""


class ParetoPoint(NamedTuple):
    """One configuration; less is better for both numbers."""

    label: str
    cost: float  # such as dollars per million requests
    latency_s: float


def pareto_front(points: Iterable[ParetoPoint]) -> list[ParetoPoint]:
    """The points that no other one dominates, by growing cost.

    A point dominates another if it is no worse in both numbers and better in one; equal points
    stay together. Points with a number that is not finite are left out.
    """
    known = [point for point in points if isfinite(point.cost) and isfinite(point.latency_s)]
    front: list[ParetoPoint] = []
    for point in sorted(known, key=lambda point: (point.cost, point.latency_s)):
        last = front[-1] if front else None
        if last is None or point.latency_s < last.latency_s or point[1:] == last[1:]:
            front.append(point)
    return front


def plot_pareto(
    points: Sequence[ParetoPoint],
    path: Path,
    cost_label: str = "cost",
    latency_label: str = "latency",
) -> None:
    """Draw all points and their front into an SVG or PNG file, by suffix. Raises ReportError."""
    save(lambda: _draw(points, cost_label, latency_label), path)


def _draw(points: Sequence[ParetoPoint], cost_label: str, latency_label: str) -> "Figure":
    """Numbered points and their front, with a legend beside them, since names would overprint."""
    from matplotlib.figure import Figure

    known = [point for point in points if isfinite(point.cost) and isfinite(point.latency_s)]
    known.sort(key=lambda point: (point.cost, point.latency_s, point.label))
    front = pareto_front(points)
    height = max(4.5, 0.9 + 0.19 * len(known))
    figure = Figure(figsize=(11, height), layout="constrained")
    axes, beside = figure.subplots(1, 2, width_ratios=(3, 2))
    axes.set_title("Cost against latency")
    axes.set_xlabel(plain(cost_label))
    axes.set_ylabel(plain(latency_label))
    axes.plot([p.cost for p in known], [p.latency_s for p in known], "o", color=MUTED)
    axes.step(
        [p.cost for p in front],
        [p.latency_s for p in front],
        "-o",
        where="post",
        color=BLUE,
        label="Pareto front",
    )
    axes.margins(0.1)
    for numbers in _groups(known):
        point = known[numbers[0]]
        axes.annotate(
            _ranges(numbers),
            (point.cost, point.latency_s),
            xytext=(5, 4),
            textcoords="offset points",
            fontsize=8,
        )
    if front:
        axes.legend()
    _name(beside, known, front, height)
    return figure


def _name(
    beside: "Axes", known: Sequence[ParetoPoint], front: Sequence[ParetoPoint], height: float
) -> None:
    """A line for each number: its configuration and two figures."""
    beside.axis("off")
    for number, point in enumerate(known):
        text = (
            f"{number + 1}  {shorten(point.label, 44)}  "
            f"{three_digits(point.cost)}, {seconds(point.latency_s)}"
        )
        at = 1 - 0.19 * number / (height - 0.9)
        color = BLUE if point in front else MUTED
        beside.text(0, at, plain(text), va="top", fontsize=8, color=color)


def _groups(known: Sequence[ParetoPoint]) -> list[list[int]]:
    """Groups of points so close on the page that they share one text."""
    if not known:
        return []
    wide = max(p.cost for p in known) - min(p.cost for p in known) or 1.0
    high = max(p.latency_s for p in known) - min(p.latency_s for p in known) or 1.0
    groups: list[list[int]] = []
    for index, point in enumerate(known):
        for group in groups:
            first = known[group[0]]
            near = abs(point.cost - first.cost) < NEAR[0] * wide
            if near and abs(point.latency_s - first.latency_s) < NEAR[1] * high:
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def _ranges(indices: Sequence[int]) -> str:
    """`1-3, 7`: numbers from 1 on of growing indices."""
    named = written_ranges(index + 1 for index in indices).split(",")
    return ", ".join(named if len(named) <= 3 else [*named[:2], "..."])
