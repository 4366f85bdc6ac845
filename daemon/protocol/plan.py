"""The self-driving plan's message to the daemon: plan, prediction and truth."""

import msgspec


class PlanStatus(msgspec.Struct, frozen=True):
    """The newest plan; shares are of requests that keep both SLOs, -1: not known."""

    settings: str = ""  # the settings in force, in words; empty: nothing drives
    before: str = ""  # those before the newest plan; empty: there was none
    state: str = ""  # of the newest plan: on trial | kept | undone | outdated
    measured_before: float = -1.0
    predicted: float = -1.0
    measured: float = -1.0
    applied_s: float = -1.0  # the daemon's monotonic clock
    searches: int = 0
    note: str = ""  # the outcome of the last look

    @property
    def words(self) -> str:
        """One line: plan, prediction and truth."""
        if not self.before:
            return ": ".join(part for part in (self.settings, self.note) if part)
        truth = f"{self.measured:.0%} measured" if self.measured >= 0.0 else "not measured yet"
        return (
            f"{self.before} -> {self.settings}: {self.measured_before:.0%} before, "
            f"{self.predicted:.0%} predicted, {truth}, {self.state}"
        )
