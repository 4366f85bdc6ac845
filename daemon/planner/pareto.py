"""The Pareto front of cost against latency, and its plot (Vidur's Figure 5)."""

from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from daemon.report.figures import AMBER, BLUE, MUTED, plain, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Point(NamedTuple):
    """One configuration; of both numbers less is better."""

    label: str
    cost: float  # such as dollars per million requests
    latency_s: float


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """The points that no other one dominates, by growing cost.

    A point dominates another if it is no worse in both numbers and better in one; equal points
    stay together. Points with a number that is not finite are left out.
    """
    known = [one for one in points if isfinite(one.cost) and isfinite(one.latency_s)]
    front: list[Point] = []
    for one in sorted(known, key=lambda point: (point.cost, point.latency_s)):
        last = front[-1] if front else None
        if last is None or one.latency_s < last.latency_s or one[1:] == last[1:]:
            front.append(one)
    return front


def plot_pareto(
    points: Sequence[Point], path: Path, cost_label: str = "cost", latency_label: str = "latency"
) -> None:
    """Draw all points and their front into an SVG or PNG file, by suffix. Raises ReportError."""
    save(lambda: _draw(points, cost_label, latency_label), path)


def _draw(points: Sequence[Point], cost_label: str, latency_label: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title("Cost against latency")
    axes.set_xlabel(plain(cost_label))
    axes.set_ylabel(plain(latency_label))
    front = pareto_front(points)
    known = [one for one in points if isfinite(one.cost) and isfinite(one.latency_s)]
    axes.plot([p.cost for p in known], [p.latency_s for p in known], "o", color=MUTED)
    axes.step(
        [p.cost for p in front],
        [p.latency_s for p in front],
        "-o",
        where="post",
        color=BLUE,
        label="Pareto front",
    )
    for point in known:
        axes.annotate(
            plain(point.label),
            (point.cost, point.latency_s),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=8,
            color=BLUE if point in front else AMBER,
        )
    axes.margins(0.1)
    if front:
        axes.legend()
    return figure
