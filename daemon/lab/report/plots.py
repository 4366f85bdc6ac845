"""One figure of a run: latency distributions, queues and KV memory over time, forward sizes."""

from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from daemon.lab.report.figures import AMBER, BLUE, MUTED, TEAL, plain, save
from daemon.lab.report.measures import means_between, measure
from daemon.lab.report.numbers import percent, printable, seconds, three_digits
from daemon.lab.report.records import Float64, InstanceLog, RunLog
from daemon.lab.report.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_POINTS = 400
"""Points of a curve: more would not be visible, and a long run's file would grow without bound."""

MARKED = (0.5, 0.9, 0.99)


def plot(run: RunLog, report: Report, path: Path) -> None:
    """Draw the run into an SVG or PNG file, by suffix. Raises ReportError."""
    save(lambda: draw(run, report), path)


def draw(run: RunLog, report: Report) -> "Figure":
    """The figure: two rows of three panels under two lines that describe the run."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    below_the_head = ConstrainedLayoutEngine(rect=(0, 0, 1, 0.89), w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(12, 7), layout=below_the_head)
    figure.text(0.012, 0.955, _line(report.label, 115), fontsize=12, weight="bold")
    figure.text(0.012, 0.918, _line(_circumstances(report), 150), fontsize=9.5, color=MUTED)
    (ttft, tpot, normalized), (queue, memory, sizes) = figure.subplots(2, 3)
    latencies = measure(run.requests)
    _distribution(ttft, "Time to first token (TTFT)", latencies.ttft_s)
    _distribution(tpot, "Time per output token (TPOT)", latencies.tpot_s)
    _distribution(normalized, "Latency / output token", latencies.normalized_latency_s)
    ttft.set_ylabel("share of requests")
    _queues(queue, run)
    _memory(memory, run)
    _forward_sizes(sizes, run)
    return figure


def _line(text: str, width: int) -> str:
    return plain(shorten(printable(text), width, placeholder=" ..."))


def _circumstances(report: Report) -> str:
    parts = [
        report.kind,
        f"policy {report.policy}",
        report.profile,
        f"seed {report.seed}",
        f"{report.finished:,} of {report.requests:,} requests finished",
        f"{three_digits(report.throughput_rps)} requests/s",
    ]
    if report.slo_attainment is not None:
        parts.append(f"{percent(report.slo_attainment)} within promises")
    return " · ".join(parts)


def _distribution(axes: "Axes", title: str, values: Float64) -> None:
    """The cumulative distribution, on a logarithmic axis where it spans more than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_title(title)
    known = values[~np.isnan(values)]
    if not known.size:
        _nothing(axes)
        return
    shares = np.linspace(0, 1, min(max(known.size, 2), NUM_POINTS))
    axes.plot(np.quantile(known, shares), shares, color=BLUE)
    marked = np.quantile(known, MARKED)
    axes.plot(marked, MARKED, "o", color=BLUE, markersize=4.5)
    named = [f"p{100 * s:.0f}  {seconds(v)}" for s, v in zip(MARKED, marked.tolist(), strict=True)]
    text = "\n".join([f"mean  {seconds(float(known.mean()))}", *named])
    low, high = float(known.min()), float(known.max())
    is_wide = low > 0 and high > 10 * low
    middle = (low * high) ** 0.5 if is_wide else (low + high) / 2
    above = float((known <= middle).mean()) > 0.45  # the curve leaves the lower right free
    at: dict[str, Any] = {"x": 0.97, "y": 0.06, "ha": "right", "va": "bottom"}
    if not above:
        at = {"x": 0.03, "y": 0.97, "ha": "left", "va": "top"}
    axes.text(s=text, transform=axes.transAxes, fontsize=9, linespacing=1.5, **at)
    if is_wide:
        axes.set_xscale("log")
        ticks = (1, 2, 5) if high < 30 * low else (1, 3) if high < 1000 * low else (1,)
        axes.xaxis.set_major_locator(LogLocator(subs=ticks))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    _in_percent(axes)
    axes.set_ylim(0, 1.03)


def _in_percent(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def _tick(value: float) -> str:
    scale, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * scale:g} {unit}"


def _queues(axes: "Axes", run: RunLog) -> None:
    """Running and waiting sequences, over all instances."""
    axes.set_title("Sequences")
    axes.set_ylabel("number")
    axes.set_xlabel("seconds")
    edges = _edges(run)
    logs = [log for log in run.instances if log.sample_s]
    if not logs or edges is None:
        _nothing(axes)
        return
    running = np.sum([means_between(i.sample_s, i.sample_running, edges) for i in logs], axis=0)
    waiting = np.sum([means_between(i.sample_s, i.sample_waiting, edges) for i in logs], axis=0)
    axes.stairs(waiting, edges, color=AMBER, fill=True, alpha=0.25, linewidth=0)
    axes.stairs(waiting, edges, color=AMBER, label="waiting", linewidth=1.4, baseline=None)
    axes.stairs(running, edges, color=BLUE, label="running", linewidth=1.4, baseline=None)
    _finish(axes, edges)


def _memory(axes: "Axes", run: RunLog) -> None:
    """Shares of KV memory allocated and written, the mean of the instances."""
    axes.set_title("KV memory")
    axes.set_ylabel("share of blocks")
    axes.set_xlabel("seconds")
    edges = _edges(run)
    logs = [log for log in run.instances if log.sample_allocated]
    if not logs or edges is None:
        _nothing(axes)
        return

    def mean(series: str) -> Float64:
        rows = [means_between(i.sample_s, getattr(i, series), edges) for i in logs]
        total: Float64 = np.sum(rows, axis=0)
        return total / len(logs)

    allocated, written = mean("sample_allocated"), mean("sample_written")
    axes.stairs(allocated, edges, color=AMBER, label="allocated", linewidth=1.4, baseline=None)
    axes.stairs(written, edges, color=TEAL, fill=True, alpha=0.25, linewidth=0)
    axes.stairs(written, edges, color=TEAL, label="written", linewidth=1.4, baseline=None)
    _in_percent(axes)
    _finish(axes, edges)
    axes.set_ylim(0, 1.03)


def _forward_sizes(axes: "Axes", run: RunLog) -> None:
    """The share of steps by their number of tokens, in powers of two."""
    axes.set_title("Forward size")
    axes.set_xlabel("tokens in a step")
    axes.set_ylabel("share of steps")
    sizes = np.concatenate([np.zeros(0), *(_sizes(log) for log in run.instances)])
    if not sizes.size:
        _nothing(axes)
        return
    from matplotlib.ticker import FuncFormatter, NullLocator

    top = int(np.ceil(np.log2(sizes.max() + 1)))
    edges = np.exp2(np.arange(0, 2 * top + 1) / 2)
    counts, _ = np.histogram(sizes, edges)
    axes.stairs(counts / sizes.size, edges, color=TEAL, fill=True, alpha=0.85)
    axes.set_xscale("log", base=2)
    axes.set_xlim(edges[0], edges[-1])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    _in_percent(axes)
    axes.grid(visible=False, axis="x")


def _sizes(log: InstanceLog) -> Float64:
    return np.asarray(log.sample_step_tokens, np.float64)


def _edges(run: RunLog) -> Float64 | None:
    """Times between which curves are averaged over the whole run; None: it took no time."""
    begin_s = float(run.requests.arrival_s[0]) if len(run.requests) else 0.0
    if run.virtual_s <= 0:
        return None
    return np.linspace(begin_s, begin_s + run.virtual_s, NUM_POINTS + 1)


def _finish(axes: "Axes", edges: Float64) -> None:
    """Limits, and the legend above the panel, where no curve passes."""
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", bbox_to_anchor=(1.02, 0.98), ncols=2, columnspacing=1.2)


def _nothing(axes: "Axes") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "not measured", color=MUTED, ha="center", transform=axes.transAxes)
