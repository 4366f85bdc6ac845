"""Placement by role: the instances a sequence is offered to first, and its overflow.

Splitwise section IV-A: a prompt goes to the prompt pool; where the queue there is too long to the
mixed pool, and where that is too long to the pool of the other role. Roles are preferences: an
instance of any role serves what it is given. With `scheduler.mixed_pool` an instance is in the
mixed pool while it does work of the other role.
"""

from collections.abc import Sequence as Listing
from typing import Protocol, TypeVar

from daemon.state.role import Role

OVERFLOW_S = 2.0
"""The time to compute what waits in a queue beyond which the queue is too long."""


class Ranked(Protocol):
    """An instance as placement by role sees it."""

    @property
    def pool(self) -> Role:
        """The pool that it is in: its role's, or the mixed one."""

    @property
    def wait_s(self) -> float:
        """Predicted time to compute all that waits there."""


AnyRanked = TypeVar("AnyRanked", bound=Ranked)


def preferred(candidates: Listing[AnyRanked], wanted: Role) -> list[AnyRanked]:
    """The candidates of the first pool whose shortest queue is not too long; if all are too long,
    of the pool with the shortest queue. `wanted` is PREFILL or DECODE.
    """
    pools: dict[Role, list[AnyRanked]] = {wanted: [], Role.MIXED: []}
    for candidate in candidates:
        pools.setdefault(candidate.pool, []).append(candidate)
    filled = [pool for pool in pools.values() if pool]
    for pool in filled:
        if min(candidate.wait_s for candidate in pool) <= OVERFLOW_S:
            return pool
    return min(filled, key=lambda pool: min(candidate.wait_s for candidate in pool))
