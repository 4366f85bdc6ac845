"""Which request a log line belongs to."""

import logging
from contextvars import ContextVar

current: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request whose handler runs; empty outside of handlers."""


class WithRequestId(logging.Filter):
    """Gives every record an attribute `request_id`, which formatters show where there is one.

    Ids are printable ASCII without spaces (`middleware.py`), so that no client can forge a line.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is missing; keeps every record."""
        if not hasattr(record, "request_id"):
            record.request_id = current.get()
        return True
