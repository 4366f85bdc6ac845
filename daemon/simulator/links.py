"""Links with contention: copies queue at a link's engine and take its whole bandwidth in turn."""

from dataclasses import dataclass

from daemon.cost.profile import LinkSpec


@dataclass(slots=True, frozen=True)
class Copy:
    """When a copy has the link."""

    start_s: float
    end_s: float


class Link:
    """One direction of a host or peer link. A copy engine serves in the order of asking, so that
    the last of several copies ends when their bytes have passed, however they are cut.
    """

    def __init__(self, spec: LinkSpec, name: str = "link") -> None:
        self.name = name
        self.busy_s = 0.0
        self.size_bytes = 0
        self._spec = spec
        self._free_s = 0.0

    def copy(self, now: float, size_bytes: int) -> Copy:
        """Queue a copy. Raises ValueError where the link's bandwidth is unknown."""
        if self._spec.bytes_per_s <= 0.0:
            raise ValueError(f"{self.name}: the profile gives it no bandwidth")
        self.size_bytes += size_bytes
        return self.hold(now, self._spec.latency_s + size_bytes / self._spec.bytes_per_s)

    def hold(self, now: float, duration_s: float) -> Copy:
        """Queue something that takes the link for a known time."""
        start_s = max(now, self._free_s)
        self._free_s = start_s + duration_s
        self.busy_s += duration_s
        return Copy(start_s, self._free_s)
