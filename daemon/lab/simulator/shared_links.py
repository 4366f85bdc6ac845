"""Links that several copies pass at once: fair shares, reckoned anew whenever one comes or goes."""

from collections.abc import Mapping
from dataclasses import dataclass

NEVER = float("inf")


@dataclass(slots=True)
class _Flow:
    """A copy on its way, as it was when shares were last reckoned."""

    links: tuple[str, ...]
    left_bytes: float
    since_s: float
    bytes_per_s: float = 0.0
    ends_s: float = NEVER

    def left_at(self, now: float) -> float:
        """Bytes that have not passed yet."""
        return max(0.0, self.left_bytes - self.bytes_per_s * (now - self.since_s))


class SharedLinks:
    """Links by name, each with its bandwidth. A copy takes one or several of them at once.

    Shares are max-min fair: a link divides itself evenly, and what a copy cannot use because
    another of its links is narrower is left to the others. Nothing is ever booked: who asks when
    the end of a copy is, asks of those that are under way now.
    """

    def __init__(self, bytes_per_s: Mapping[str, float]) -> None:
        self._bytes_per_s = dict(bytes_per_s)
        self._flows: dict[int, _Flow] = {}

    @property
    def next_s(self) -> float:
        """When the next copy has passed, if none comes or goes before."""
        return min((flow.ends_s for flow in self._flows.values()), default=NEVER)

    def begin(self, now: float, number: int, links: tuple[str, ...], size_bytes: float) -> None:
        """A copy begins."""
        self._flows[number] = _Flow(links, size_bytes, now)
        self._share(now)

    def passed(self, now: float) -> list[int]:
        """The copies that have passed by now, in order of beginning; they are forgotten."""
        gone = [number for number, flow in self._flows.items() if flow.ends_s <= now]
        for number in gone:
            del self._flows[number]
        if gone:
            self._share(now)
        return gone

    def stop(self, now: float, number: int) -> float:
        """Break a copy off; how many of its bytes had not passed. None of a copy that is not here
        are left.
        """
        flow = self._flows.pop(number, None)
        if flow is None:
            return 0.0
        self._share(now)
        return flow.left_at(now)

    def _share(self, now: float) -> None:
        """Give every copy its share: the narrowest link first, then what that leaves to others."""
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
