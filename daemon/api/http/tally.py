"""Counts of events that clients cause; however many, they make one log line a second."""

import asyncio
import logging
from collections import Counter
from contextvars import Context
from typing import NamedTuple

log = logging.getLogger(__name__)

INTERVAL_S = 1.0


class ClientEvent(NamedTuple):
    """An event that clients cause, in plural and singular for log lines."""

    several: str
    single: str

    def counted(self, count: int) -> str:
        """`2 clients left`, `1 client left`."""
        return f"{count} {self.single if count == 1 else self.several}"


class Tally:
    """Counts events, and logs new ones. Metrics use the plural as the event's name."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._unlogged: Counter[ClientEvent] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, event: ClientEvent) -> None:
        """Count an event; it is logged within `INTERVAL_S`, with all that follow until then."""
        self.totals[event.several] += 1
        self._unlogged[event] += 1
        if self._timer is None:
            # A context of its own: the line does not belong to the first request.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(INTERVAL_S, self.say, context=Context())

    def say(self) -> None:
        """Log the events not yet logged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unlogged:
            log.info(
                "%s", ", ".join(event.counted(count) for event, count in self._unlogged.items())
            )
            self._unlogged.clear()
