"""`llmd compare A B`: two reports side by side, measured or simulated."""

import argparse
import sys
from pathlib import Path

import msgspec

from daemon.base.files import write_whole
from daemon.cli.faults import error_text
from daemon.lab.report.compare import as_text, read_report
from daemon.lab.report.compare import compare as compared
from daemon.lab.report.errors import ReportError
from daemon.lab.report.page import NamedRun, page_of_two
from daemon.lab.report.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd compare`."""
    parser.add_argument("a", type=Path, metavar="A", help="a report that --out wrote")
    parser.add_argument("b", type=Path, metavar="B", help="another, shown relative to A")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with the charts of both"
    )


def compare(arguments: argparse.Namespace) -> int:
    """Print the comparison. 0: done; 1: a report cannot be read, or has no curves to draw."""
    try:
        a, b = read_report(arguments.a), read_report(arguments.b)
        if arguments.html is not None:
            runs = _named(arguments.a, a, "A"), _named(arguments.b, b, "B")
            write_whole(arguments.html, page_of_two(*runs).encode())
    except BrokenPipeError:  # of stdout: the caller handles it
        raise
    except (ReportError, OSError) as error:
        print(f"llmd: {error_text(error)}", file=sys.stderr)
        return 1
    comparison = compared(a, b)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(comparison).decode(), indent=2))
    else:
        print(as_text(comparison))
    return 0


def _named(path: Path, report: Report, letter: str) -> NamedRun:
    """A report as a page has it. Raises ReportError."""
    if isinstance(report.curves, msgspec.UnsetType):
        raise ReportError(
            f"{path}: has no curves to draw: write it with --out of llmd simulate or llmd bench"
        )
    return NamedRun(f"{letter} {path.stem}", report, report.curves)
