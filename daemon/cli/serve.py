"""`llmd serve`: the daemon, in the foreground."""

import argparse
import sys

from daemon.cli.parser import overrides
from daemon.cli.plan_profile import KEY, profile_fault
from daemon.config.load import ConfigError, ConfigFault, Loaded, load
from daemon.models.embedded import refuse_missing
from daemon.models.shape import ModelError


def serve(arguments: argparse.Namespace) -> int:
    """Load the configuration and run until a signal ends it. 1: it failed. Raises ConfigError."""

    def read() -> Loaded:
        return load(arguments.config, overrides(arguments))

    loaded = read()
    if fault := profile_fault(loaded.config):
        raise ConfigError([ConfigFault(loaded.file, KEY, fault)])
    try:
        refuse_missing(loaded.config.model.path)
    except ModelError as error:
        print(f"llmd: {error}", file=sys.stderr)
        return 1
    from daemon.runtime.daemon import run  # here: faults so far are reported at once

    return run(loaded, read)
