"""Entry point of `llmd`: parse, dispatch, turn expected errors into one line and a status."""

import sys
from collections.abc import Sequence

from daemon.cli.parser import build_parser
from daemon.config.load import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: it failed; 2: the command line or configuration is wrong."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.command == "serve":
            from daemon.cli.serve import serve

            return serve(arguments)
        if arguments.command == "check":
            from daemon.cli.check import check

            return check(arguments)
        from daemon.cli.ctl import ctl

        return ctl(arguments)
    except ConfigError as error:
        print(f"llmd: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
