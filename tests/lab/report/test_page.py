"""Pages: curves by hand, valid SVG that draws them, and nothing loaded, run or unescaped."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest

from daemon.lab.report.charts import (
    CHARACTER,
    WIDTH,
    ChartAxis,
    ChartLine,
    chart,
    number,
    seconds_tick,
    spread_axis,
    time_tick,
)
from daemon.lab.report.curves import NUM_TIMES, curves_of
from daemon.lab.report.page import NamedRun, page_of_run, page_of_two
from daemon.lab.report.summarize import summarize
from tests.lab.report.logs import busy, by_hand
from tests.lab.report.test_summarize import ABOUT

VOID = {"meta", "input"}


class _Nesting(HTMLParser):
    """Fails where a tag is not closed, or something would be loaded or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "img")
        for name, _ in attrs:
            assert name not in ("src", "href") and not name.startswith("on"), (tag, name)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> list[ET.Element]:
    """The charts of a page that is whole and self-contained."""
    nesting = _Nesting()
    nesting.feed(text)
    assert not nesting.open and "http" not in text.replace("http-equiv", "") and "url(" not in text
    assert "default-src 'none'" in text
    drawings = re.findall(r"<svg.*?</svg>", text)
    assert drawings and "nan" not in "".join(drawings)
    return [ET.fromstring(one) for one in drawings]


def test_curves_of_a_run_by_hand() -> None:
    curves = curves_of(by_hand())
    assert (curves.begin_s, curves.end_s) == (0.0, 8.0)
    assert curves.quantiles["ttft_s"][0] == 1.0 and curves.quantiles["ttft_s"][-1] == 4.0
    assert curves.quantiles["gap_s"][50] == 1.0
    second = NUM_TIMES // 8  # bins of a second
    running, waiting = curves.series["running"], curves.series["waiting"]
    assert running[0] == 1.0 and running[4 * second] == 3.0  # two on a, one on b
    assert (waiting[0], waiting[4 * second]) == (0.0, 1.0)
    assert curves.series["kv_allocated"][0] == 0.25  # the mean of 0.5 and of nothing yet
    assert "power_w" not in curves.series


def test_clients_see_who_waits_and_who_is_answered() -> None:
    """Without instances: arrived and without a first token, then until the last one."""
    run = by_hand()
    run.instances.clear()
    series = curves_of(run).series
    second = NUM_TIMES // 8
    assert set(series) == {"waiting", "running"}
    assert [series["waiting"][at * second] for at in (0, 1, 2, 3, 4)] == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert [series["running"][at * second] for at in (0, 1, 2, 5)] == [0.0, 1.0, 1.0, 1.0]


def test_power_is_the_energy_between_two_times() -> None:
    run = by_hand()
    for log in run.instances:
        log.sample_energy_j = [100.0 * at_s for at_s in log.sample_s]
    run.instances[1].sample_s, run.instances[1].sample_energy_j = [0.0, 6.0], [0.0, 300.0]
    watts = curves_of(run).series["power_w"]
    assert watts[0] == 150.0 and watts[-1] == 0.0


def test_a_page_is_whole_and_draws_what_was_measured() -> None:
    run = busy(60)
    report = summarize(run, ABOUT)
    text = page_of_run(report, curves_of(run))
    charts = checked(text)
    assert len(charts) == 7  # four distributions, queue, KV memory, batch
    assert text.count("not measured") == 1  # power
    assert text == page_of_run(report, curves_of(run))
    for drawn in charts:
        assert len(drawn.findall("path[@class]")) > 2


def test_two_runs_are_in_common_charts() -> None:
    one, two = busy(40), busy(40, seed=2)
    two.instances.clear()
    runs = [
        NamedRun(name, summarize(run, ABOUT), curves_of(run))
        for name, run in (("A one", one), ("B two", two))
    ]
    text = page_of_two(*runs)
    charts = checked(text)
    colors = [{path.get("class") for path in drawn.findall("path")} for drawn in charts]
    assert sum({"l c0", "l c1"} <= found for found in colors) == 6  # distributions and queues


def test_a_label_cannot_be_markup() -> None:
    run = busy(20)
    report = msgspec.structs.replace(
        summarize(run, ABOUT), label='<script>alert("x")</script>\x1b[2J'
    )
    checked(page_of_run(report, curves_of(run)))


@pytest.mark.parametrize("requests", [0, 1])
def test_a_run_of_hardly_anything_has_a_page(requests: int) -> None:
    run = busy(20)
    empty = by_hand()
    empty.instances.clear()
    log = type(empty.requests).empty(requests)
    log.arrival_s[:] = 0.0
    empty.requests, empty.virtual_s = log, 0.0
    text = page_of_run(summarize(run, ABOUT), curves_of(empty))
    assert text.count("not measured") == 8


def test_an_axis_of_more_than_a_decade_is_logarithmic() -> None:
    axis = spread_axis(np.array([0.01, 0.5]), time_tick)
    assert axis is not None and axis.log
    assert [time_tick(tick) for tick in axis.ticks()] == [
        *("10 ms", "20 ms", "50 ms"), *("100 ms", "200 ms", "500 ms")
    ]  # fmt: skip
    near = spread_axis(np.array([0.01, 0.05]), time_tick)
    assert near is not None and not near.log and near.low == 0.0
    assert spread_axis(np.array([np.nan]), time_tick) is None


def test_a_line_is_where_its_axis_says_and_stops_at_a_gap() -> None:
    axis = ChartAxis(0.0, 2.0, number)
    line = ChartLine("a", np.array([0.0, 1.0, 1.5, 2.0]), np.array([0.0, 2.0, np.nan, 1.0]), "c0")
    drawn = ET.fromstring(chart("a chart", axis, axis, [line]))
    paths = [path.get("d") for path in drawn.findall("path") if path.get("class") == "l c0"]
    assert paths == ["M52.0 204.0L240.0 12.0", "M428.0 108.0"]


@pytest.mark.parametrize("high", [0.004, 6.0, 100.0, 1000.0, 25_000.0, 2_000_000.0])
def test_ticks_are_whole_numbers_within_the_box(high: float) -> None:
    """A day of seconds is no power of ten, and the last tick is not cut off at the edge."""
    for text in (time_tick, seconds_tick):
        axis = ChartAxis(0.0, high, text)
        drawn = ET.fromstring(chart("edge", axis, ChartAxis(0.0, 1.0, number)))
        ticks = [one for one in drawn.iter("text") if one.get("class") == "m"]
        assert len(ticks) > 3
        for tick in ticks:
            at, said = float(tick.get("x", "nan")), tick.text or ""
            assert "e+" not in said and at + len(said) * CHARACTER / 2 <= WIDTH + 0.1
    assert max(len(seconds_tick(10.0**power)) for power in range(300)) <= len("1,000,000 s")
    assert time_tick(12_345.0) == "12,345 s" and seconds_tick(1.5) == "1.5 s"
