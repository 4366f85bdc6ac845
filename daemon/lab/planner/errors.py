"""The planner's error: one sentence that names the value."""


class PlannerError(ValueError):
    """A search, a price or a plot cannot be made; the message says why."""
