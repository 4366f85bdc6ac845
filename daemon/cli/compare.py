"""`llmd compare A B`: two reports side by side, measured or simulated."""

import argparse
import sys
from pathlib import Path

import msgspec

from daemon.cli.faults import error_text
from daemon.lab.report.compare import as_text, read_report
from daemon.lab.report.compare import compare as compared
from daemon.lab.report.errors import ReportError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd compare`."""
    parser.add_argument("a", type=Path, metavar="A", help="a report that --out wrote")
    parser.add_argument("b", type=Path, metavar="B", help="another, shown relative to A")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def compare(arguments: argparse.Namespace) -> int:
    """Print the comparison. 0: done; 1: a report cannot be read."""
    try:
        comparison = compared(read_report(arguments.a), read_report(arguments.b))
    except BrokenPipeError:  # of stdout: the caller handles it
        raise
    except (ReportError, OSError) as error:
        print(f"llmd: {error_text(error)}", file=sys.stderr)
        return 1
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(comparison).decode(), indent=2))
    else:
        print(as_text(comparison))
    return 0
