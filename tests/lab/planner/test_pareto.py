"""The front against its definition, and the plot."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from daemon.lab.planner.pareto import ParetoPoint, _draw, pareto_front, plot_pareto
from daemon.lab.report.errors import ReportError

NUMBERS = st.integers(0, 8).map(float) | st.floats(0, 1e6) | st.just(float("nan"))
POINTS = st.lists(st.builds(ParetoPoint, st.sampled_from("abc"), NUMBERS, NUMBERS), max_size=20)


def _dominates(a: ParetoPoint, b: ParetoPoint) -> bool:
    no_worse = a.cost <= b.cost and a.latency_s <= b.latency_s
    return no_worse and (a.cost < b.cost or a.latency_s < b.latency_s)


@given(POINTS)
def test_the_front_is_what_nothing_dominates(points: list[ParetoPoint]) -> None:
    known = [p for p in points if p.cost == p.cost and p.latency_s == p.latency_s]
    expected = [p for p in known if not any(_dominates(other, p) for other in known)]
    front = pareto_front(points)
    assert sorted(front) == sorted(expected)
    assert [p.cost for p in front] == sorted(p.cost for p in front)


def test_an_infinite_number_is_no_point() -> None:
    assert (
        pareto_front([ParetoPoint("a", float("inf"), 1.0), ParetoPoint("b", 1.0, float("inf"))])
        == []
    )


SOME = [
    ParetoPoint("vllm", 3.0, 2.0),
    ParetoPoint("$arathi$", 2.0, 3.0),
    ParetoPoint("orca", 4.0, 4.0),
]


@pytest.mark.parametrize("name", ["front.svg", "front.png"])
def test_the_same_points_give_the_same_file(tmp_path: Path, name: str) -> None:
    files = [tmp_path / "a" / name, tmp_path / "b" / name]
    for file in files:
        file.parent.mkdir()
        plot_pareto(SOME, file, "$ per hour", "P90 TTFT (s)")
    assert files[0].read_bytes() == files[1].read_bytes()
    if name.endswith(".svg"):
        assert "orca" in files[0].read_text()


def test_a_plot_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReportError, match=r"front\.gif: a plot is written as \.svg or \.png"):
        plot_pareto(SOME, tmp_path / "front.gif")
    with pytest.raises(ReportError, match="No such file"):
        plot_pareto(SOME, tmp_path / "nowhere" / "front.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError, match="-m pip install matplotlib"):
        plot_pareto(SOME, tmp_path / "front.svg")


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Texts of a figure that lie over each other."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    texts = [one for axes in figure.axes for one in axes.texts if one.get_text()]
    boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in texts]
    return [
        (name, other)
        for index, (name, box) in enumerate(boxes)
        for other, below in boxes[:index]
        if box.overlaps(below)
    ]


def test_no_label_lies_over_another() -> None:
    twins = [
        ParetoPoint(
            f"opt-13b@{device} {policy} {rate}/s", cost / rate, latency_s * (1 + 0.001 * rate)
        )
        for device, cost, latency_s in (("a100", 0.01, 0.03), ("h100", 0.02, 0.012))
        for policy in ("vllm", "sarathi", "speculative")
        for rate in (1, 2, 3)
    ]
    figure = _draw(twins, "dollars per request", "latency (s)")
    shown = "\n".join(text.get_text() for text in figure.axes[1].texts)
    assert all(point.label in shown for point in twins)
    assert overlapping(figure) == []
