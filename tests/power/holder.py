"""A process that keeps caps as a daemon does: `python -m tests.power.holder SOCKET`."""

import sys
from collections.abc import Sequence

import uvloop

from daemon.config.schema import PowerConfig
from daemon.runtime import power
from daemon.runtime.power import PowerCaps
from daemon.state.role import Role
from tests.powerd.fake_cards import uuid_of

ROLES = Role.PREFILL, Role.MIXED, Role.DECODE


def main(arguments: Sequence[str]) -> None:
    """Keep three cards at their default limits until killed."""
    power.INTERVAL_S = power.FIRST_RETRY_S = 0.02
    (path,) = arguments
    cards = [[uuid_of(number)] for number in (1, 2, 3)]
    uvloop.run(PowerCaps(PowerConfig("on", path), cards, ROLES, 0.1).run())


if __name__ == "__main__":
    main(sys.argv[1:])
