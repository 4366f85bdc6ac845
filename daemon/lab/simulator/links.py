"""Links with contention: transfers queue, and each has a link's whole bandwidth for a time."""

from daemon.cost.profile import LinkSpec
from daemon.lab.report.records import Span


class SimulatedLink:
    """One direction of a host link, or the link from one pipeline stage to the next.

    It serves in the order of calls. So users of a shared link call at the time of their need, never
    ahead of it: else a later copy would delay an earlier one.
    """

    def __init__(
        self, name: str, what: str, unit: str = "tokens", spans: list[Span] | None = None
    ) -> None:
        """`what` passes, counted in `unit`; each use is added to `spans`, if there is a list."""
        self.name = name
        self._what = what
        self._unit = unit
        self._spans = spans
        self._free_s = 0.0

    def hold(self, now: float, duration_s: float, amount: int) -> float:
        """Queue a use of known duration; return when it has passed."""
        start_s = max(now, self._free_s)
        self._free_s = start_s + duration_s
        if self._spans is not None:
            detail: dict[str, float | int | str] = {self._unit: amount}
            self._spans.append(Span(self.name, self._what, start_s, duration_s, detail))
        return self._free_s

    def clear(self, now: float) -> None:
        """Drop the transfers under way and in the queue."""
        self._free_s = now
        if self._spans is not None:
            mine = [span for span in self._spans if span.track == self.name]
            for span in mine:
                span.duration_s = min(span.duration_s, now - span.start_s)
            self._spans[:] = [span for span in self._spans if span.duration_s >= 0.0]


def transfer_s(spec: LinkSpec, size_bytes: float, link: str) -> float:
    """The time that a copy takes on a link of this kind. Raises ValueError where its speed is
    unknown.
    """
    if spec.bytes_per_s <= 0.0:
        raise ValueError(f"{link}: the profile gives it no bandwidth")
    return spec.latency_s + size_bytes / spec.bytes_per_s
