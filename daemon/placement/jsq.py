"""Join the shortest queue: a sequence goes where the fewest tokens are still to be computed."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement
from daemon.state.role import Role


class ShortestQueue(Placement):
    """A queue's length is its pending tokens (Splitwise, section 4.2): of prompts those not
    computed, of answers those likely to come, whether they run or wait.
    """

    name = "jsq"
    meaning = "where the fewest tokens are still to be computed, of prompts and of answers"
    looks_at_lengths = True

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The candidate with the shortest queue; among equals the first."""
        return min(
            candidates, key=lambda candidate: (pending_tokens(candidate), candidate.instance)
        ).instance


def pending_tokens(candidate: Candidate) -> int:
    """Tokens that an instance still has to compute of all its sequences."""
    if candidate.role is Role.PREFILL:
        return candidate.num_pending_tokens + candidate.prompt_left
    return candidate.load.likely_tokens + candidate.beyond - candidate.context
