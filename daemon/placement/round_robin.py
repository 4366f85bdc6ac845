"""Round robin: instances take turns, whatever they hold (Vidur, section 4.5)."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST, request_of


class RoundRobin(Placement):
    """The turn is the sequence's own number, so it is the same when it is placed again."""

    name = "round_robin"
    meaning = "to each instance in turn"

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The candidate whose turn it is."""
        turn = request_of(newcomer.sequence) + newcomer.sequence % MAX_SEQUENCES_PER_REQUEST
        return sorted(candidate.instance for candidate in candidates)[turn % len(candidates)]
