"""Placement by role: which instances a sequence is offered to first, and when it overflows.

Splitwise section 4.2: a prompt goes to the prompt pool; where the queue there is too long to the
mixed pool, and where that is too long to the pool of the other role. Roles are preferences: an
instance of any role serves what it is given.
"""

from collections.abc import Sequence as Listing
from typing import Protocol, TypeVar

from daemon.state.role import Role

OVERFLOW_S = 2.0
"""A queue is too long when those that wait there take so long to compute."""


class Ranked(Protocol):
    """What is asked of an instance here."""

    @property
    def role(self) -> Role:
        """What it prefers."""

    @property
    def wait_s(self) -> float:
        """Predicted time to compute all that waits there."""


AnyRanked = TypeVar("AnyRanked", bound=Ranked)


def preferred(candidates: Listing[AnyRanked], wanted: Role) -> list[AnyRanked]:
    """Those of the first pool whose shortest queue is not too long; if all are, of the pool with
    the shortest queue. `wanted` is PREFILL or DECODE.
    """
    pools: dict[Role, list[AnyRanked]] = {wanted: [], Role.MIXED: []}
    for one in candidates:
        pools.setdefault(one.role, []).append(one)
    filled = [pool for pool in pools.values() if pool]
    for pool in filled:
        if min(one.wait_s for one in pool) <= OVERFLOW_S:
            return pool
    return min(filled, key=lambda pool: min(one.wait_s for one in pool))
