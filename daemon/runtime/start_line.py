"""A start as it is seen by who waits for it: a line that is redrawn, or lines of the log."""

import asyncio
import logging
from collections.abc import Callable

from daemon.base import logs
from daemon.runtime.loads import Loads
from daemon.runtime.status import DaemonStatus

log = logging.getLogger(__name__)

DRAW_S = 0.25
LOG_S = 10.0
"""So often a log without a terminal says how far the start is, beside each new stage."""


async def show_start(loads: Loads, phase: Callable[[], DaemonStatus]) -> None:
    """Show how far the start is until all is ready, or the daemon is told to stop."""
    loop = asyncio.get_running_loop()
    logged_s = loop.time()
    try:
        while not (phase().started or phase().draining):
            logs.show(loads.bar() or loads.stage)
            if not logs.shows() and loop.time() - logged_s >= LOG_S:
                logged_s = loop.time()
                log.info("%s", phase().sentence)
            await asyncio.sleep(DRAW_S)
    finally:
        logs.show("")
