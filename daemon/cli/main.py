"""Entry point of `llmd`: parse, dispatch, turn expected errors into one line and a status."""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from daemon.cli.exit_status import to_the_end


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: it failed; 2: the command line or configuration is wrong;
    above 128: a signal ended it, or the reader of its output is gone.
    """
    return to_the_end("llmd", partial(_run, sys.argv[1:] if argv is None else argv))


def _run(words: Sequence[str]) -> int:
    # Imported here, where `to_the_end` already handles signals.
    from daemon.cli.faults import UsageError, error_text
    from daemon.cli.parser import build_parser
    from daemon.config.load import ConfigError

    arguments = build_parser(words).parse_args(words)
    try:
        command = import_module(f"daemon.cli.{arguments.command}")
        return int(getattr(command, arguments.command)(arguments))
    except ConfigError as error:
        for fault in error.faults:
            print(f"llmd: {fault}", file=sys.stderr)
        return 2
    except UsageError as error:
        print(f"llmd: {error_text(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
