"""Placement by role: which instances a sequence is offered to first, and when it overflows.

Splitwise section 4.2: a prompt goes to the prompt pool; where the queue there is too long to the
mixed pool, and where that is too long to the pool of the other role. Roles are preferences: an
instance of any role serves what it is given.
"""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate
from daemon.role import Role

OVERFLOW_S = 2.0
"""A queue is too long when those that wait there take so long to compute."""


def preferred(candidates: Listing[Candidate], wanted: Role) -> list[Candidate]:
    """Those of the first pool whose shortest queue is not too long; if all are, of the pool with
    the shortest queue. `wanted` is PREFILL or DECODE.
    """
    pools: dict[Role, list[Candidate]] = {wanted: [], Role.MIXED: []}
    for one in candidates:
        pools.setdefault(one.role, []).append(one)
    filled = [pool for pool in pools.values() if pool]
    for pool in filled:
        if min(one.wait_s for one in pool) <= OVERFLOW_S:
            return pool
    return min(filled, key=lambda pool: min(one.wait_s for one in pool))
