"""The figure: the same bytes twice, the right curves, and clear refusals."""

import sys
from pathlib import Path

import matplotlib as mpl
import msgspec
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.path import Path as MplPath

from daemon.lab.report.errors import ReportError
from daemon.lab.report.plots import draw, plot
from daemon.lab.report.records import RequestLog, RunLog
from daemon.lab.report.summarize import summarize
from tests.lab.report.logs import busy, by_hand
from tests.lab.report.test_summarize import ABOUT


def test_svg_is_the_same_twice_and_leaves_settings_alone(tmp_path: Path) -> None:
    run = busy(60)
    report = summarize(run, ABOUT)
    before, had_pyplot = mpl.rcParams.copy(), "matplotlib.pyplot" in sys.modules
    for name in ("a.svg", "b.svg"):
        plot(run, report, tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert first.startswith(b"<?xml") and b"<dc:date>" not in first
    assert mpl.rcParams.copy() == before
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_png(tmp_path: Path) -> None:
    run = by_hand()
    plot(run, summarize(run, ABOUT), tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_panels_show_the_run() -> None:
    run = by_hand()
    figure = draw(run, summarize(run, ABOUT))
    panels = {panel.get_title(loc="left") or panel.get_title(): panel for panel in figure.axes}
    curve, marks = panels["Time to first token (TTFT)"].get_lines()
    shares = np.asarray(curve.get_ydata())
    assert np.asarray(curve.get_xdata()).tolist() == [1, 1, 1, 4]
    assert shares.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert np.asarray(marks.get_xdata()).tolist() == pytest.approx([1, 3.1, 3.91])

    running = panels["Sequences"].patches[-1].get_data()  # type: ignore[attr-defined]
    at_s = (running.edges[:-1] + running.edges[1:]) / 2
    expected = np.select([at_s < 4, at_s < 6], [1, 3], 1)
    np.testing.assert_allclose(running.values, expected, atol=1e-9)

    allocated = panels["KV memory"].patches[0].get_data()  # type: ignore[attr-defined]
    expected = np.select([at_s < 4, at_s < 6], [0.25, 0.75], 0.375)
    np.testing.assert_allclose(allocated.values, expected, atol=1e-9)

    sizes = panels["Forward size"].patches[0].get_data()  # type: ignore[attr-defined]
    found = {
        (sizes.edges[i], sizes.edges[i + 1]): share for i, share in enumerate(sizes.values) if share
    }
    assert sum(found.values()) == 1
    for num_tokens in (10, 20, 30, 40):
        assert any(low <= num_tokens < high for low, high in found)


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    run = RunLog(RequestLog.empty(0), [], [], virtual_s=0.0, wall_s=0.0)
    figure = draw(run, summarize(run, ABOUT))
    assert [panel.texts[0].get_text() for panel in figure.axes] == ["not measured"] * 6


def test_a_label_is_no_formula(tmp_path: Path) -> None:
    run = by_hand()
    report = summarize(run, msgspec.structs.replace(ABOUT, label=r"cheap $\frac{ trace $" * 9))
    plot(run, report, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 0


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = by_hand()
    report = summarize(run, ABOUT)
    with pytest.raises(ReportError, match=r"a\.pdf: a plot is written as \.svg or \.png"):
        plot(run, report, tmp_path / "a.pdf")
    with pytest.raises(ReportError, match="No such file"):
        plot(run, report, tmp_path / "none" / "a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ReportError, match=r"^plots need matplotlib, .*/python\S* -m pip install matplotlib$"
    ):
        plot(run, report, tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("times_s", [[1.0, 9.0, 9.5, 9.8, 10.0], [1.0, 1.1, 1.2, 1.3, 10.0]])
def test_the_figures_stand_where_the_curve_is_not(times_s: list[float]) -> None:
    run = by_hand()
    run.requests.arrival_s[:] = 0
    run.requests.first_s[:] = times_s
    run.requests.last_s[:] = times_s
    figure = draw(run, summarize(run, ABOUT))
    panel = figure.axes[0]
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    box = panel.texts[0].get_window_extent(renderer)
    curve = panel.get_lines()[0]
    shown = panel.transData.transform(np.column_stack([curve.get_xdata(), curve.get_ydata()]))
    path = MplPath(shown).interpolated(50)
    assert not any(box.contains(x, y) for x, y in path.vertices)
