"""Pages for a browser: a self-contained HTML file with charts of a run, or of two runs at once.

Nothing is loaded from elsewhere and nothing is executed: the page forbids both to itself.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from daemon.lab.report.charts import (
    ChartAxis,
    ChartLine,
    ChartPoint,
    Text,
    axis_of,
    chart,
    number,
    seconds_tick,
    share_tick,
    spread_axis,
    time_tick,
)
from daemon.lab.report.compare import compare, rows_of
from daemon.lab.report.numbers import percent, printable, seconds, three_digits
from daemon.lab.report.render import LATENCIES
from daemon.lab.report.report import Curves, Report, Stats

_STYLE = """
:root{--ink:#1f2733;--mute:#5d6878;--line:#e1e6ec;--back:#f6f8fa;--card:#fff;
--c0:#2c6fbb;--c1:#c2571a;--c2:#16806f;--c3:#8a93a0}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--mute:#9aa6b5;--line:#303844;--back:#12161c;
--card:#1a2029;--c0:#6aa9ef;--c1:#f0965c;--c2:#4cc2ae;--c3:#717c8b}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:20px 16px 40px}
h1{font-size:1.35rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:26px 0 10px}
h3{font-size:.92rem;margin:0 0 2px}
p{margin:4px 0}.mute{color:var(--mute)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(138px,1fr));gap:10px;margin:16px 0}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px}
.card b{display:block;font-size:1.25rem;font-weight:600;white-space:nowrap}
.tiles .card{padding:8px 12px}.tiles span{color:var(--mute);font-size:.82rem}
figure{margin:0}figcaption{color:var(--mute);font-size:.8rem;min-height:1.5em}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--mute)}
.m{text-anchor:middle}.e{text-anchor:end}.s{text-anchor:start}
.g{stroke:var(--line);fill:none}.l{fill:none;stroke-width:1.8;stroke-linejoin:round}
.f{opacity:.16;stroke:none}.p{stroke:var(--card);stroke-width:1.2}
.l.c0{stroke:var(--c0)}.l.c1{stroke:var(--c1)}.l.c2{stroke:var(--c2)}.l.c3{stroke:var(--c3)}
.f.c0,.p.c0{fill:var(--c0)}.f.c1,.p.c1{fill:var(--c1)}.f.c2,.p.c2{fill:var(--c2)}
.f.c3,.p.c3{fill:var(--c3)}
figcaption span{white-space:nowrap;margin-right:1em;display:inline-block}
i{display:inline-block;width:.9em;height:.25em;margin:0 .35em .2em 0;border-radius:2px}
i.c0{background:var(--c0)}i.c1{background:var(--c1)}i.c2{background:var(--c2)}
i.c3{background:var(--c3)}
pre{overflow-x:auto;font-size:.8rem;line-height:1.45;margin:0}.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.86rem}
th,td{padding:4px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left;padding-left:0}th{color:var(--mute);font-weight:500}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MARKED = (0.5, 0.9, 0.99)
_COLORS = ("c0", "c1", "c2")


class NamedRun(NamedTuple):
    """A run on a page."""

    name: str
    report: Report
    curves: Curves


class _Panel(NamedTuple):
    """A chart over time: its series, by name, and the text of its ticks."""

    title: str
    series: tuple[tuple[str, str], ...]  # (name in `Curves.series`, name for people)
    text: Text


_OVER_TIME = (
    _Panel("Queue", (("running", "running"), ("waiting", "waiting")), number),
    _Panel("KV memory", (("kv_allocated", "allocated"), ("kv_written", "written")), share_tick),
    _Panel("Batch, tokens of a step", (("step_tokens", "tokens"),), number),
    _Panel("Power, W", (("power_w", "all devices"),), number),
)
_CUMULATIVE = (
    ("ttft_s", "Time to first token (TTFT)"),
    ("tpot_s", "Time per output token (TPOT)"),
    ("gap_s", "Gaps between tokens"),
    ("jct_s", "Whole answer (JCT)"),
)


def page(title: str, parts: Sequence[str]) -> str:
    """A whole HTML file of these parts."""
    head = f"<title>{text_of(title)}</title><style>{_STYLE}</style>"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    size = '<meta name="viewport" content="width=device-width,initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{policy}{size}{head}</head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def page_of_run(report: Report, curves: Curves) -> str:
    """The page of one run, simulated or measured."""
    run = NamedRun("", report, curves)
    return page(report.label, [heading(report.label, [_origin(report)]), *parts_of_run(run)])


def page_of_two(a: NamedRun, b: NamedRun) -> str:
    """The page of two runs, B over A, each chart with both."""
    lines = [f"{run.name}: {run.report.label}; {_origin(run.report)}" for run in (a, b)]
    return page(f"{a.name} and {b.name}", [heading("Two runs", lines), *parts_of_two(a, b)])


def parts_of_run(run: NamedRun) -> list[str]:
    """Headline figures, distributions, curves over time and a table of one run."""
    return [
        tiles(_headline(run.report)),
        section("Distributions", [_cumulative([run], *each) for each in _CUMULATIVE]),
        section("Over time", [_timeline(run, panel) for panel in _OVER_TIME]),
        section("Percentiles", [table(_percentiles(run.report))], wide=True),
    ]


def parts_of_two(a: NamedRun, b: NamedRun) -> list[str]:
    """The same of two runs in common charts."""
    runs, figures = [a, b], rows_of(compare(a.report, b.report), a.name, b.name)
    panels = [
        _overlaid(runs, panel, *series)
        for panel in _OVER_TIME
        for series in panel.series
        if series[0] != "kv_written"
    ]
    return [
        section("Distributions", [_cumulative(runs, *each) for each in _CUMULATIVE]),
        section("Over time", panels),
        section("Figures", [table(figures)], wide=True),
    ]


def text_of(text: str) -> str:
    """Text for HTML: escaped, without control characters."""
    return escape(printable(text))


def heading(title: str, lines: Sequence[str]) -> str:
    """The title and the lines below it."""
    below = "".join(f'<p class="mute">{text_of(line)}</p>' for line in lines)
    return f"<h1>{text_of(title)}</h1>{below}"


def section(title: str, cards: Sequence[str], wide: bool = False) -> str:
    """Cards under a title, beside each other where there is room."""
    inner = "".join(f'<div class="card">{card}</div>' for card in cards)
    return f"<h2>{text_of(title)}</h2>" + (inner if wide else f'<div class="grid">{inner}</div>')


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """A few figures that are read first."""
    cells = (
        f'<div class="card"><b>{text_of(value)}</b><span>{text_of(name)}</span></div>'
        for name, value in figures
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells; the first row is the head."""
    head, *body = (
        "".join(f"<{tag}>{text_of(cell)}</{tag}>" for cell in row)
        for row, tag in zip(rows, ["th", *["td"] * (len(rows) - 1)], strict=True)
    )
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    return f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>'


def lines_as_written(text: str) -> str:
    """Lines whose columns stay under each other."""
    return f"<pre>{escape(text)}</pre>"


def figure(title: str, drawn: str, notes: Sequence[tuple[str, str]]) -> str:
    """A chart with its title and its legend: (colour or "", text)."""
    legend = "".join(
        "<span>" + (f'<i class="{color}"></i>' if color else "") + f"{text_of(note)}</span>"
        for color, note in notes
    )
    return f"<figure><h3>{text_of(title)}</h3><figcaption>{legend}</figcaption>{drawn}</figure>"


def _origin(report: Report) -> str:
    parts = [report.kind, f"policy {report.policy}" if report.policy else "", report.profile]
    parts += [f"seed {report.seed}", f"{report.finished:,} of {report.requests:,} finished"]
    return ", ".join(part for part in parts if part)


def _headline(report: Report) -> list[tuple[str, str]]:
    found = [
        ("requests/s", three_digits(report.throughput_rps)),
        ("output tokens/s", three_digits(report.output_tokens_per_s)),
        ("P99 TTFT", seconds(report.ttft_s.p99)),
        ("P99 TPOT", seconds(report.tpot_s.p99)),
        ("P99 longest gap", seconds(report.longest_gap_s.p99)),
    ]
    if report.slo_attainment is not None:
        found.insert(0, ("of promises kept", percent(report.slo_attainment)))
    if report.mean_power_w:
        found.append(("mean power", three_digits(report.mean_power_w, "W")))
    return found


def _nothing(title: str) -> str:
    return figure(title, "", [("", "not measured")])


def _cumulative(runs: Sequence[NamedRun], name: str, title: str) -> str:
    """The distributions of a latency, with the median and the tail marked."""
    known = [run for run in runs if run.curves.quantiles.get(name)]
    x = spread_axis(
        np.concatenate([np.zeros(0), *(run.curves.quantiles[name] for run in known)]), time_tick
    )
    if x is None:
        return _nothing(title)
    lines, points, notes = [], [], []
    for run in known:
        color = _COLORS[runs.index(run)]
        values = np.array(run.curves.quantiles[name])
        shares = np.linspace(0.0, 1.0, values.size)
        lines.append(ChartLine(run.name, values, shares, color))
        marked = [float(np.interp(share, shares, values)) for share in _MARKED]
        texts = [f"p{100 * s:.0f} {seconds(v)}" for s, v in zip(_MARKED, marked, strict=True)]
        points += [
            ChartPoint(value, share, f"{run.name} {text}".strip(), color)
            for value, share, text in zip(marked, _MARKED, texts, strict=True)
        ]
        notes.append((color, " ".join([run.name, *texts]).strip()))
    y = ChartAxis(0.0, 1.03, share_tick)
    return figure(title, chart(title, x, y, lines, points), notes)


def _timeline(run: NamedRun, panel: _Panel) -> str:
    series = [
        (run.curves.series[name], people)
        for name, people in panel.series
        if name in run.curves.series
    ]
    return _over_time(panel, panel.title, [(run.curves, *each) for each in series])


def _overlaid(runs: Sequence[NamedRun], panel: _Panel, name: str, people: str) -> str:
    title = panel.title if len(panel.series) == 1 else f"{panel.title}: {people}"
    found = [
        (run.curves, run.curves.series[name], run.name) for run in runs if name in run.curves.series
    ]
    return _over_time(panel, title, found)


def _over_time(
    panel: _Panel, title: str, found: Sequence[tuple[Curves, Sequence[float], str]]
) -> str:
    """Curves over the time since each run's first arrival."""
    y = axis_of(np.concatenate([np.zeros(0), *(values for _, values, _ in found)]), panel.text)
    if y is None:
        return _nothing(title)
    lines = []
    for place, (curves, values, name) in enumerate(found):
        edges = np.linspace(0.0, curves.end_s - curves.begin_s, len(values) + 1)
        middles = (edges[1:] + edges[:-1]) / 2
        lines.append(ChartLine(name, middles, np.array(values), _COLORS[place], place == 0))
    longest_s = max(curves.end_s - curves.begin_s for curves, _, _ in found)
    x = ChartAxis(0.0, longest_s, seconds_tick)
    return figure(title, chart(title, x, y, lines), [(line.color, line.name) for line in lines])


def _percentiles(report: Report) -> list[list[str]]:
    rows = [["", *Stats.__struct_fields__]]
    for name, field in LATENCIES.items():
        stats: Stats = getattr(report, field)
        rows.append([name, *(seconds(getattr(stats, each)) for each in Stats.__struct_fields__)])
    return rows
