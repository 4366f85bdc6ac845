"""Relief: a stream that waits for long where it is goes on where there is room."""

from collections.abc import Iterator
from collections.abc import Sequence as Listing
from itertools import islice

from daemon.core.destinations import kv_home
from daemon.core.instance import Instance
from daemon.core.pledges import Pledges, pace_of
from daemon.core.transfers import LinkEnds
from daemon.state.role import Role
from daemon.state.sequence import Sequence

WAIT_SHARE = 0.25
"""Of the longest pause: whoever waits for less may come back before it is worth a move."""

LOOK = 8
"""So many of those that wait longest are looked at, after each step of their instance."""


def refuges(
    home: Instance, instances: Listing[Instance], pledges: Pledges, links: LinkEnds, now: float
) -> Iterator[tuple[Sequence, Instance]]:
    """(stream, where it may go) of those that wait for long at an instance. Nobody gives way for
    them there: so none is sent to and fro. Where the policy promises no pace nobody is moved.
    """
    pace = pace_of(home)
    if not pace.max_pause_s:
        return
    pause_s = pace.max_pause_s
    waiting = pace.waiting_longest(now, WAIT_SHARE * pause_s)
    for sequence in list(islice(waiting, LOOK)):
        due_s = sequence.paused_since_s + pause_s
        able = [
            one
            for one in instances
            if one is not home and one.takes(sequence.limit) and pace_of(one).max_pause_s
            if not one.scheduler.waiting.num_begun and pledges.has_room(sequence, one)
            if _comes_in_time(sequence, one, links, now, due_s)
        ]
        if able and not sequence.strikes and sequence.ordered_to != home.index:
            yield sequence, min(able, key=_load)


def _load(instance: Instance) -> tuple[bool, float]:
    """Instances that are there for answers first, and then those with most room."""
    kv = instance.scheduler.kv
    return instance.role is Role.PREFILL, pace_of(instance).num_tokens / kv.capacity_tokens


def _comes_in_time(
    sequence: Sequence, target: Instance, links: LinkEnds, now: float, due_s: float
) -> bool:
    """Whether what is kept of its KV can go there before the stream is due; where it is due
    already, whether it can go there at all.
    """
    source = kv_home(sequence)
    if source in (None, target.index):
        return True
    if not links.up(source, target.index):
        return False
    num_blocks = target.scheduler.kv.blocks_for(sequence.residence.parked_tokens)
    return now >= due_s or now + links.time(source, target.index).predict_s(num_blocks) <= due_s
