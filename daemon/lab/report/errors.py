"""The error of reports: one sentence that names the place."""


class ReportError(ValueError):
    """A run or a report cannot be read, summarised or shown; the message says why."""
