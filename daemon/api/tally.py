"""Events that clients cause, counted: a flood of them is one log line a second."""

import asyncio
import logging
from collections import Counter
from contextvars import Context
from typing import NamedTuple

log = logging.getLogger(__name__)

INTERVAL_S = 1.0


class ClientEvent(NamedTuple):
    """Something that clients cause, as a log line has several of it and a single one."""

    several: str
    single: str

    def counted(self, count: int) -> str:
        """`2 clients left`, `1 client left`."""
        return f"{count} {self.single if count == 1 else self.several}"


class Tally:
    """Counts events, and logs those that are new. Metrics have an event's name in the plural."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._unsaid: Counter[ClientEvent] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, event: ClientEvent) -> None:
        """It happened once more; said within `INTERVAL_S`, with all that happens until then."""
        self.totals[event.several] += 1
        self._unsaid[event] += 1
        if self._timer is None:
            # A context of its own: the line is not one of the request that came first.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(INTERVAL_S, self.say, context=Context())

    def say(self) -> None:
        """Log what has not been said yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unsaid:
            log.info("%s", ", ".join(event.counted(count) for event, count in self._unsaid.items()))
            self._unsaid.clear()
