"""Placement by load: a sequence goes where the fewest tokens wait."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement


class LeastLoaded(Placement):
    """The fewest pending tokens; ties go to free memory, then few sequences."""

    name = "least_loaded"
    meaning = "where the fewest tokens wait, then to the most free memory"

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The index of the least loaded candidate."""
        return min(candidates, key=load_key).instance


def load_key(candidate: Candidate) -> tuple[int, float, int, int]:
    """The key by which instances are ordered: lowest for the least loaded."""
    return (
        candidate.num_pending_tokens,
        candidate.kv_share,
        candidate.num_running,
        candidate.instance,
    )
