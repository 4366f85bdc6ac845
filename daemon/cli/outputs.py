"""The output flags of `llmd simulate` and `llmd bench`, and the writing of reports."""

import argparse
from pathlib import Path

import msgspec

from daemon.base.files import check_place, write_whole
from daemon.lab.report.curves import curves_of
from daemon.lab.report.figures import check_plot
from daemon.lab.report.page import page_of_run
from daemon.lab.report.records import RunLog
from daemon.lab.report.render import as_csv, as_json, as_text
from daemon.lab.report.report import Report


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Add the output flags, in a group of their own."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")
    for flag, what in (
        ("--out", "write the report as JSON too, for llmd compare"),
        ("--csv", "write a row for each request"),
        ("--plot", "draw the run; .svg or .png"),
        ("--html", "write a page with the run's charts, for a browser"),
    ):
        group.add_argument(flag, type=Path, metavar="FILE", help=what)


_FILES = ("out", "csv", "plot", "html", "perfetto", "pareto")
_PLOTS = ("plot", "pareto")


def check_places(arguments: argparse.Namespace) -> None:
    """Refuse files that could not be written, before time is spent on a run. Raises OSError,
    ReportError.
    """
    for name in _FILES:
        if (path := getattr(arguments, name, None)) is not None:
            check_place(path)
            if name in _PLOTS:
                check_plot(path)


def write_outputs(arguments: argparse.Namespace, run: RunLog, report: Report) -> None:
    """Print the report and write the files that were asked for. Raises OSError, ReportError."""
    print(as_json(report) if arguments.json else as_text(report), flush=True)
    if arguments.out is not None:
        whole = msgspec.structs.replace(report, curves=curves_of(run))
        write_whole(arguments.out, as_json(whole).encode() + b"\n")
    if arguments.csv is not None:
        write_whole(arguments.csv, as_csv(run).encode())
    if arguments.html is not None:
        write_whole(arguments.html, page_of_run(report, curves_of(run)).encode())
    if arguments.plot is not None:
        from daemon.lab.report.plots import plot

        plot(run, report, arguments.plot)


def write_text(arguments: argparse.Namespace, json: str, text: str) -> None:
    """Print JSON or text, as --json says, and write --out. Raises OSError."""
    print(json if arguments.json else text, flush=True)
    if arguments.out is not None:
        write_whole(arguments.out, json.encode() + b"\n")
