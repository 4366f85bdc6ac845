"""`llmd serve`: the daemon, in the foreground."""

import argparse

from daemon.cli.parser import overrides
from daemon.config.load import Loaded, load


def serve(arguments: argparse.Namespace) -> int:
    """Load the configuration and run until a signal ends it. Raises ConfigError."""

    def read() -> Loaded:
        return load(arguments.config, overrides(arguments))

    loaded = read()
    from daemon.runtime.daemon import run  # here: a wrong configuration is told within 0.1 s

    return run(loaded, read)
