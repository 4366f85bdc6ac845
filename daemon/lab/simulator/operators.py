"""An operator of a simulated daemon: looks at it now and then, and gives orders."""

from collections.abc import Sequence
from typing import Protocol

from daemon.core.values.events import Event
from daemon.lab.report.records import RequestLog


class Operator(Protocol):
    """Looks at its own times, while requests are left."""

    @property
    def due_s(self) -> float:
        """When it looks next."""

    def look(self, now: float, log: RequestLog) -> Sequence[Event]:
        """Orders, given the records of all requests until now."""
