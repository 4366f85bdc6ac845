"""The one command line of llmd-top."""

from pathlib import Path

from daemon.cli.argument_parser import Parser
from daemon.cli.printed import add_printing


def parser() -> Parser:
    """The argument parser of llmd-top."""
    made = Parser(
        prog="llmd-top",
        description="Watch a running llmd daemon.",
        epilog="? inside shows the keys. NO_COLOR in the environment leaves out colours.",
    )
    made.add_argument("-1", dest="once", action="store_true", help="print one plain frame, exit")
    made.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help="the daemon's control socket (default: the one of a daemon that runs here)",
    )
    made.add_argument("--readonly", action="store_true", help="offer nothing that changes it")
    source = made.add_mutually_exclusive_group()
    source.add_argument(
        "--record", type=Path, metavar="F", help="write all that is seen to the new file F"
    )
    source.add_argument("--replay", type=Path, metavar="F", help="play what was recorded in F")
    add_printing(made)
    return made
