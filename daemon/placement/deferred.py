"""Deferred binding (Vidur, section 4.5): one queue, until an instance can begin a sequence."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement
from daemon.placement.least_loaded import load_key


class Deferred(Placement):
    """The least loaded instance with room takes a newcomer at once. Without one it queues at the
    first instance, and so behind all that wait: balancing (`daemon/placement/balance.py`) takes the
    first of that queue to whichever instance can begin it.
    """

    name = "deferred"
    meaning = "to the first that can begin it; until then all wait in one queue"

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The least loaded candidate with room, or the one with the common queue."""
        able = [candidate for candidate in candidates if self.has_room(newcomer, candidate)]
        common = min(candidate.instance for candidate in candidates)
        waits = any(other.instance == common and other.num_waiting for other in candidates)
        return common if waits or not able else min(able, key=load_key).instance
