"""Placement: a new sequence goes to the least loaded instance."""

from collections.abc import Sequence as Listing
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Load:
    """The load of one instance."""

    instance: int
    num_pending_tokens: int  # known tokens of sequences that wait for it
    num_running: int
    kv_share: float  # of its blocks held, 0..1


def least_loaded(loads: Listing[Load]) -> int:
    """The instance with the fewest pending tokens; ties go to free memory, then few sequences."""
    best = min(
        loads,
        key=lambda load: (load.num_pending_tokens, load.kv_share, load.num_running, load.instance),
    )
    return best.instance
