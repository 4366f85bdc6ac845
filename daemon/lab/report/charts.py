"""Charts as SVG text for pages: curves over time, cumulative distributions, and scattered points.

Colours are classes of the page's style sheet, so that a chart follows its light or dark scheme. The
same data give the same text. A number beside a point shows when the pointer rests on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log, log10

import numpy as np
import numpy.typing as npt

from daemon.lab.report.numbers import printable
from daemon.lab.report.records import Float64

WIDTH, HEIGHT = 440, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 26
CHARACTER = 6.7
"""Width of one on a chart, about."""
_DECADE = 10.0
_TICKS = 6
"""About so many on an axis."""

Text = Callable[[float], str]


@dataclass(frozen=True)
class ChartLine:
    """A curve: y over x, both [N]; NaN interrupts it."""

    name: str
    x: Float64
    y: Float64
    color: str  # a class of the style sheet: c0, c1, ...
    filled: bool = False


@dataclass(frozen=True)
class ChartPoint:
    """A marked point; `name` shows beside the pointer, `label` on the chart."""

    x: float
    y: float
    name: str
    color: str
    label: str = ""


@dataclass(frozen=True)
class ChartAxis:
    """The bounds of an axis, and the text of its ticks; `log`: equal steps are equal factors."""

    low: float
    high: float
    text: Text
    log: bool = False

    def share(self, values: Float64) -> Float64:
        """Places of values, from 0 at the lower bound to 1 at the upper one."""
        if self.log:
            return _share(np.log(np.maximum(values, self.low)), log(self.low), log(self.high))
        return _share(values, self.low, self.high)

    def ticks(self) -> list[float]:
        """Round numbers within the bounds."""
        if self.log:
            return _log_ticks(self.low, self.high)
        step = _round_step((self.high - self.low) / _TICKS)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _share(at: Float64, low: float, high: float) -> Float64:
    found: Float64 = (at - low) / (high - low)
    return found


def axis_of(values: Float64, text: Text, from_zero: bool = True) -> ChartAxis | None:
    """An axis that holds all finite values; None: there are none."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    low, high = float(known.min()), float(known.max())
    low = min(0.0, low) if from_zero else low
    if high <= low:
        high = low + (abs(low) or 1.0)
    return ChartAxis(low, high + 0.04 * (high - low), text)


def spread_axis(values: Float64, text: Text) -> ChartAxis | None:
    """The same for latencies: logarithmic where they span more than a decade above zero."""
    known = values[np.isfinite(values)]
    if known.size and known.min() > 0 and known.max() > _DECADE * known.min():
        return ChartAxis(float(known.min()), float(known.max()) * 1.05, text, log=True)
    return axis_of(known, text)


def chart(
    what: str,
    x: ChartAxis,
    y: ChartAxis,
    lines: Sequence[ChartLine] = (),
    points: Sequence[ChartPoint] = (),
) -> str:
    """An SVG of these curves and points; `what` is its text for readers without eyes."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(printable(what))}">',
        *_grid(x, y),
        *(_drawn(line, x, y) for line in lines),
        *(_marked(point, x, y) for point in points),
        "</svg>",
    ]
    return "".join(parts)


def _grid(x: ChartAxis, y: ChartAxis) -> list[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    for tick in y.ticks():
        at = _down(y, tick)
        parts.append(f'<path class="g" d="M{_LEFT} {at:.1f}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" class="e">{y.text(tick)}</text>')
    for tick in x.ticks():
        at = _across(x, tick)
        parts.append(f'<path class="g" d="M{at:.1f} {_TOP}V{bottom}"/>')
        text = x.text(tick)
        middle = min(at, WIDTH - len(text) * CHARACTER / 2)  # within the box
        parts.append(f'<text x="{middle:.1f}" y="{bottom + 17}" class="m">{text}</text>')
    return parts


def _across(x: ChartAxis, value: float) -> float:
    share = float(x.share(np.array([value]))[0])
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _down(y: ChartAxis, value: float) -> float:
    share = float(y.share(np.array([value]))[0])
    return _TOP + (1.0 - share) * (HEIGHT - _TOP - _BOTTOM)


def _drawn(line: ChartLine, x: ChartAxis, y: ChartAxis) -> str:
    across = _LEFT + x.share(line.x) * (WIDTH - _LEFT - _RIGHT)
    down = _TOP + (1.0 - y.share(line.y)) * (HEIGHT - _TOP - _BOTTOM)
    parts = []
    for run in _runs(np.isfinite(across) & np.isfinite(down)):
        places = [f"{a:.1f} {b:.1f}" for a, b in zip(across[run], down[run], strict=True)]
        if line.filled:
            base = f"{_down(y, max(y.low, 0.0)):.1f}"
            area = f"M{across[run][0]:.1f} {base}L{'L'.join(places)}L{across[run][-1]:.1f} {base}Z"
            parts.append(f'<path class="f {line.color}" d="{area}"/>')
        parts.append(f'<path class="l {line.color}" d="M{"L".join(places)}"/>')
    return "".join(parts)


def _runs(known: npt.NDArray[np.bool_]) -> list[slice]:
    """The stretches without a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], known, [False])).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _marked(point: ChartPoint, x: ChartAxis, y: ChartAxis) -> str:
    if not (isfinite(point.x) and isfinite(point.y)):
        return ""
    across, down = _across(x, point.x), _down(y, point.y)
    name = escape(printable(point.name))
    mark = f'<circle class="p {point.color}" cx="{across:.1f}" cy="{down:.1f}" r="4">'
    mark += f"<title>{name}</title></circle>"
    if point.label:
        left = across < WIDTH / 2
        at, side = (across + 7, "s") if left else (across - 7, "e")
        label = escape(printable(point.label))
        mark += f'<text class="{side}" x="{at:.1f}" y="{down + 4:.1f}">{label}</text>'
    return mark


def _round_step(rough: float) -> float:
    """The next of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(rough))
    return next(
        step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= rough * (1 - 1e-9)
    )


def _log_ticks(low: float, high: float) -> list[float]:
    decades = log10(high / low)
    steps = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0, 3.0) if decades < 3.5 else (1.0,)
    first, last = floor(log10(low)), ceil(log10(high))
    ticks = (step * 10.0**power for power in range(first, last + 1) for step in steps)
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def number(value: float) -> str:
    """A tick without a unit: 0.05, 2, 1,500."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def time_tick(value: float) -> str:
    """A tick in seconds: 20 ms, 1.5 s."""
    if value == 0:
        return "0"
    if value >= 0.9995:
        return seconds_tick(value)
    scale, unit = (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * scale:.4g} {unit}"


def seconds_tick(value: float) -> str:
    """A tick in whole seconds, or parts of a few: 0.5 s, 20,000 s."""
    return f"{value:,.0f} s" if 1000 <= value < 1e7 else f"{value:.4g} s"


def share_tick(value: float) -> str:
    """A tick of a share: 25 %."""
    return f"{100 * value:.3g} %"
