"""systemd's watchdog, fed by the event loop itself: a loop that hangs feeds nobody."""

import asyncio
import logging
from collections.abc import Callable

from daemon.base import notify

log = logging.getLogger(__name__)


async def feed(stuck: Callable[[], str]) -> None:
    """Tell the service manager, twice in its interval, that the daemon makes progress.

    `stuck` says why it does not, or nothing; then the manager is left to kill the daemon and to
    start it again. Returns at once where no watchdog was asked for.
    """
    interval_s = notify.watchdog_s() / 2
    said = ""
    while interval_s:
        why = stuck()
        if not why:
            notify.alive()
        elif why != said:
            log.error("the watchdog is not fed: %s", why)
        said = why
        await asyncio.sleep(interval_s)
