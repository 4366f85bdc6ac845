"""Placement by load: a sequence goes where the fewest tokens wait."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement


class LeastLoaded(Placement):
    """The fewest pending tokens; ties go to free memory, then few sequences."""

    name = "least_loaded"
    meaning = "where the fewest tokens wait, then to the most free memory"

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The least loaded one's index."""
        return min(candidates, key=load_key).instance


def load_key(one: Candidate) -> tuple[int, float, int, int]:
    """What instances are ordered by: the least loaded one has the lowest."""
    return one.num_pending_tokens, one.kv_share, one.num_running, one.instance
