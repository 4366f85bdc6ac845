"""Two reports side by side: a simulated run beside the real one, a policy beside another."""

import re
from pathlib import Path

import msgspec

from daemon.base.files import TABLE_BYTES, read_whole
from daemon.lab.report.errors import ReportError
from daemon.lab.report.numbers import aligned, percent, seconds, three_digits, wrapped
from daemon.lab.report.render import LATENCIES, WIDTH
from daemon.lab.report.report import Report, Stats

CIRCUMSTANCES = {
    "kind": "kind",
    "workload": "label",
    "policy": "policy",
    "model and machine": "profile",
    "predictor": "predictor",
    "seed": "seed",
    "number of requests": "requests",
    "rate": "rate_rps",
}
"""The circumstances that must be equal for a fair comparison, and their fields."""

_AT = re.compile(r" - at `\$\.?(.*)`$")


class _Row(msgspec.Struct, frozen=True):
    """One measure of both runs; seconds where the unit is "s"."""

    measure: str
    unit: str  # "s", "requests/s", "share" of 0..1, or "" for a count
    a: float | None
    b: float | None
    difference: float | None  # b / a - 1; None where a is unknown or zero, or b unknown


class Comparison(msgspec.Struct, frozen=True):
    """Run B against run A."""

    rows: tuple[_Row, ...]
    notes: tuple[str, ...]  # other differences between the runs, a sentence each


def read_report(path: Path) -> Report:
    """A report from its JSON file. Raises ReportError."""
    try:
        return msgspec.json.decode(read_whole(path, TABLE_BYTES), type=Report)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        found = _AT.search(str(error))
        place = f"{found[1]}: " if found and found[1] else ""
        fault = _AT.sub("", str(error)).replace("`", "")
        raise ReportError(f"{path}: not a report: {place}{fault}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ReportError(f"{path}: not JSON: {error}") from error


def compare(a: Report, b: Report) -> Comparison:
    """Latencies, throughput, promises kept and preemptions of both, and B's difference from A."""
    rows = [
        _row(f"{name} {statistic}", "s", getattr(of_a, statistic), getattr(of_b, statistic))
        for name, field in LATENCIES.items()
        for of_a, of_b in [(getattr(a, field), getattr(b, field))]
        for statistic in Stats.__struct_fields__
    ]
    rows.append(_row("throughput", "requests/s", a.throughput_rps, b.throughput_rps))
    rows.append(_row("goodput", "requests/s", a.goodput_rps, b.goodput_rps))
    rows.append(_row("SLO attainment", "share", a.slo_attainment, b.slo_attainment))
    rows.append(_row("preemptions", "", a.preemptions, b.preemptions))
    notes = tuple(
        f"{name}: A {getattr(a, field)}, B {getattr(b, field)}"
        for name, field in CIRCUMSTANCES.items()
        if getattr(a, field) != getattr(b, field)
    )
    return Comparison(tuple(rows), notes)


def as_text(comparison: Comparison) -> str:
    """The comparison for people, within 100 columns; differences in circumstances come first."""
    lines: list[str] = []
    if comparison.notes:
        lines = ["The two runs are not alike:", *wrapped(comparison.notes, WIDTH), ""]
    return "\n".join([*lines, *wrapped(aligned(rows_of(comparison), gap=4), WIDTH)])


def rows_of(comparison: Comparison, a: str = "A", b: str = "B") -> list[list[str]]:
    """The measures as cells, below a head with both names."""
    return [
        ["", a, b, "B against A"],
        *(
            [row.measure, _value(row.a, row.unit), _value(row.b, row.unit), _change(row.difference)]
            for row in comparison.rows
        ),
    ]


def _row(measure: str, unit: str, a: float | None, b: float | None) -> _Row:
    return _Row(measure, unit, a, b, b / a - 1 if a and b is not None else None)


def _value(value: float | None, unit: str) -> str:
    if unit == "share":
        return percent(value)
    if not unit and value is not None:
        return f"{value:,.0f}"
    return seconds(value) if unit == "s" else three_digits(value, unit)


def _change(difference: float | None) -> str:
    return "-" if difference is None else f"{100 * difference:+.1f} %"
