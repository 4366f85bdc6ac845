"""Relief: a stream that waits long at its instance goes on where there is room."""

from collections.abc import Iterator
from collections.abc import Sequence as Listing
from itertools import islice

from daemon.core.instance.instance import Instance
from daemon.core.migration.destinations import kv_home
from daemon.core.migration.pledges import Pledges
from daemon.core.migration.transfers import LinkEnds
from daemon.state.role import Role
from daemon.state.sequence import Sequence

WAIT_SHARE = 0.25
"""The share of the longest pause after which a move is worth it; before, a stream may resume."""

LOOK = 8
"""Most streams that are looked at after each step of their instance, longest wait first."""


def refuges(
    home: Instance, instances: Listing[Instance], pledges: Pledges, links: LinkEnds, now: float
) -> Iterator[tuple[Sequence, Instance]]:
    """(stream, target) of streams that wait long at an instance. No stream is preempted for them at
    the target: so none is sent to and fro. Where the policy bounds no pauses none is moved.
    """
    pace = home.pace
    if not pace.max_pause_s:
        return
    pause_s = pace.max_pause_s
    waiting = list(islice(pace.waiting_longest(now, WAIT_SHARE * pause_s), LOOK))
    targets = _open(home, instances) if waiting else []
    for sequence in waiting:
        if not targets:
            return
        due_s, limit = sequence.paused_since_s + pause_s, sequence.limit
        able = [
            instance
            for instance in targets
            if instance.capacity_tokens >= limit and pledges.has_room(sequence, instance)
            if _comes_in_time(sequence, instance, links, now, due_s)
        ]
        if able and not sequence.strikes and sequence.ordered_to != home.index:
            yield sequence, min(able, key=_load)
            targets = _open(home, instances)  # it may have gone to one of them


def _open(home: Instance, instances: Listing[Instance]) -> list[Instance]:
    """The other instances where streams do not wait already."""
    return [
        instance
        for instance in instances
        if instance is not home and instance.pace.max_pause_s and instance.takes(0)
        if not instance.scheduler.waiting.num_begun
    ]


def _load(instance: Instance) -> tuple[bool, float]:
    """The key of targets: not prefill instances, then those with most room."""
    return instance.role is Role.PREFILL, instance.pace.pool_share(instance.kv)


def _comes_in_time(
    sequence: Sequence, target: Instance, links: LinkEnds, now: float, due_s: float
) -> bool:
    """Whether its kept KV can go there before the stream is due; where it is due already, whether
    it can go there at all.
    """
    source = kv_home(sequence)
    if source in (None, target.index):
        return True
    if not links.up(source, target.index):
        return False
    num_blocks = target.kv.blocks_for(sequence.residence.parked_tokens)
    return now >= due_s or now + links.time(source, target.index).predict_s(num_blocks) <= due_s
