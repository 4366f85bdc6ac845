"""Links with several transfers at once: fair shares, computed anew whenever one begins or ends."""

from collections.abc import Mapping
from dataclasses import dataclass

NEVER = float("inf")


@dataclass(slots=True)
class _Flow:
    """A transfer under way, as it was when shares were last computed."""

    links: tuple[str, ...]
    left_bytes: float
    since_s: float
    bytes_per_s: float = 0.0
    ends_s: float = NEVER

    def left_at(self, now: float) -> float:
        """Bytes that have not passed yet."""
        return max(0.0, self.left_bytes - self.bytes_per_s * (now - self.since_s))


class SharedLinks:
    """Links by name, each with its bandwidth. A transfer uses one or several of them at once.

    Shares are max-min fair: a link divides itself evenly, and the share that a transfer cannot use
    because another of its links is narrower goes to the others. Nothing is booked ahead: a
    transfer's end is computed from the transfers under way now.
    """

    def __init__(self, bytes_per_s: Mapping[str, float]) -> None:
        self._bytes_per_s = dict(bytes_per_s)
        self._flows: dict[int, _Flow] = {}

    @property
    def next_s(self) -> float:
        """The time at which the next transfer ends, if none begins or ends before."""
        return min((flow.ends_s for flow in self._flows.values()), default=NEVER)

    def begin(self, now: float, number: int, links: tuple[str, ...], size_bytes: float) -> None:
        """Begin a transfer."""
        self._flows[number] = _Flow(links, size_bytes, now)
        self._share(now)

    def passed(self, now: float) -> list[int]:
        """The transfers that have ended by now, in order of beginning; they are forgotten."""
        gone = [number for number, flow in self._flows.items() if flow.ends_s <= now]
        for number in gone:
            del self._flows[number]
        if gone:
            self._share(now)
        return gone

    def stop(self, now: float, number: int) -> float:
        """Stop a transfer; return its bytes that had not passed, 0 for an unknown one."""
        flow = self._flows.pop(number, None)
        if flow is None:
            return 0.0
        self._share(now)
        return flow.left_at(now)

    def _share(self, now: float) -> None:
        """Give every transfer its share: the narrowest link's first, then the others' rest."""
        free: dict[str, float] = {}
        users: dict[str, dict[int, None]] = {}
        for number, flow in self._flows.items():
            flow.left_bytes, flow.since_s = flow.left_at(now), now
            for link in flow.links:
                free[link] = self._bytes_per_s[link]
                users.setdefault(link, {})[number] = None
        while users:
            narrowest = min(users, key=lambda link: free[link] / len(users[link]))
            share = free[narrowest] / len(users[narrowest])
            for number in list(users[narrowest]):
                flow = self._flows[number]
                flow.bytes_per_s = share
                flow.ends_s = now + flow.left_bytes / share
                for link in flow.links:
                    free[link] = max(0.0, free[link] - share)
                    del users[link][number]
            users = {link: there for link, there in users.items() if there}
