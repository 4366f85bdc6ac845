"""The request id of log lines."""

import logging
from contextvars import ContextVar

current: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request whose handler runs; empty outside of handlers."""


class WithRequestId(logging.Filter):
    """Adds an attribute `request_id` to every record, which formatters show if it is set.

    Ids are printable ASCII without spaces (`middleware.py`), so that no client can forge a line.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attribute where it is missing; keep every record."""
        if not hasattr(record, "request_id"):
            record.request_id = current.get()
        return True
