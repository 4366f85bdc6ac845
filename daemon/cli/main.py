"""Entry point of `llmd`: parse, dispatch, turn expected errors into one line and a status."""

import sys
from collections.abc import Sequence
from importlib import import_module

from daemon.cli.parser import build_parser
from daemon.config.load import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: it failed; 2: the command line or configuration is wrong."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser(words).parse_args(words)
    try:
        if arguments.command == "serve":
            from daemon.cli.serve import serve

            return serve(arguments)
        if arguments.command == "check":
            from daemon.cli.check import check

            return check(arguments)
        if arguments.command == "ctl":
            from daemon.cli.ctl import ctl

            return ctl(arguments)
        workbench = import_module(f"daemon.cli.{arguments.command}")
        return int(getattr(workbench, arguments.command)(arguments))
    except ConfigError as error:
        print(f"llmd: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
