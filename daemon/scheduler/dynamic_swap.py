"""ALISE's dynamic swapping (section 3.2, Algorithm 2): which jobs the device's memory is for.

All jobs, running and waiting, stand in one order: queue by queue, and by EWT within a queue, which
is the policy's order (see `residency.py`). The first of them whose KV the pool holds together are
within the GPU's limit M; a queue has what those before it have left of M. Jobs within M stay on the
device, or are uploaded where they are not there; those beyond are offloaded.

Algorithm 2 as printed also offloads each job within M that is on the device already (its `else` is
that of "not in GPU and i < M"), and takes the length of a queue from M once for each of its jobs.
The text below it keeps the former and counts a queue once, and that is what is built.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np

from daemon.memory.kv_cache import KVCache
from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import Sequence

MOST_WAITING = 32
"""Waiting jobs that are looked at, which bounds a plan's time: those behind wait longest."""


class JobLimit(NamedTuple):
    """The jobs on the wrong side of the limit."""

    offloads: list[int]  # slots of running jobs beyond it, the last in the order first
    uploads: list[Sequence]  # waiting jobs within it, in order


def job_limit(slots: SlotTable, waiting: Iterable[Sequence], kv: KVCache) -> JobLimit:
    """The limit where these wait, in their order; running jobs need what they hold.

    A waiting job needs blocks for all tokens that it knows. Equal ranks go by arrival.
    """
    coming = list(islice(waiting, MOST_WAITING))
    if not coming:
        return JobLimit([], [])
    running, num_coming = slots.order(), len(coming)
    ranks = np.array([sequence.rank for sequence in coming])
    known = np.array([sequence.num_known_tokens for sequence in coming], np.int32)
    arrivals = np.array([sequence.arrival for sequence in coming], np.int64)
    order = np.lexsort(
        (
            np.concatenate([arrivals, slots.arrival[running]]),
            np.concatenate([ranks, slots.rank[running]]),
        )
    )
    num_blocks = kv.blocks_of(np.concatenate([known, slots.known[running]]))[order]
    within = np.cumsum(num_blocks) <= kv.pool.num_blocks
    inside, outside = order[within], order[~within]
    offloads = running[outside[outside >= num_coming] - num_coming]
    return JobLimit(
        offloads[::-1].tolist(), [coming[place] for place in inside[inside < num_coming].tolist()]
    )
