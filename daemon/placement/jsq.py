"""Join the shortest queue: a sequence goes where the fewest tokens are still to be computed."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement
from daemon.state.role import Role


class ShortestQueue(Placement):
    """Queues are as long as their pending tokens (Splitwise, section 4.2): of prompts what is not
    computed, of answers what is likely to come, whether they run or wait.
    """

    name = "jsq"
    meaning = "where the fewest tokens are still to be computed, of prompts and of answers"
    looks_at_lengths = True

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The one with the shortest queue; among equals the first."""
        return min(candidates, key=lambda one: (pending_tokens(one), one.instance)).instance


def pending_tokens(one: Candidate) -> int:
    """Tokens that an instance is still to compute of all that are there."""
    if one.role is Role.PREFILL:
        return one.num_pending_tokens + one.prompt_left
    return one.load.likely_tokens + one.beyond - one.context
