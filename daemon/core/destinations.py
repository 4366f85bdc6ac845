"""Destinations: who should not stay at an instance, and where they may go."""

from itertools import islice

from daemon.core.instance import Instance
from daemon.core.transfers import LinkEnds
from daemon.state.role import Role
from daemon.state.sequence import Sequence

LOOK = 64
"""So many of those that wait are looked at after each step."""


def misplaced(instance: Instance) -> list[Sequence]:
    """Those that should not stay: all, where it is drained; where it computes prompts for others,
    those that draw tokens, and those whose prompts run, as they will. Of many that wait the first.
    """
    table = instance.scheduler.slots
    running = [table.member(slot) for slot in table.order().tolist()]
    if instance.drained:
        return [*running, *islice(instance.scheduler.waiting, LOOK)]
    if instance.role is not Role.PREFILL:
        return []
    queue = instance.scheduler.waiting
    return [*running, *islice(queue.begun(), LOOK)] if queue.num_begun else running


def is_prompt(home: Instance, sequence: Sequence) -> bool:
    """Whether a running sequence has not got its first token."""
    delivered = int(home.scheduler.slots.delivered[sequence.slot])
    return delivered <= sequence.num_prompt_tokens


def destinations(
    sequence: Sequence, source: Instance, instances: list[Instance], links: LinkEnds
) -> tuple[list[Instance], Role]:
    """(where one that is to leave may go, the role that is wanted there). From an instance that is
    drained it goes anywhere if nobody has that role.
    """
    begun = sequence.num_output_tokens > 0 or not source.drained
    wanted = Role.DECODE if begun else Role.PREFILL
    unfit = Role.PREFILL if begun else Role.DECODE
    others = [one for one in instances if one is not source]
    fitting = _able(sequence, [one for one in others if one.role is not unfit], links)
    return (_able(sequence, others, links) if source.drained and not fitting else fitting), wanted


def _able(sequence: Sequence, among: list[Instance], links: LinkEnds) -> list[Instance]:
    """Those of these instances that could go on with a sequence, and that its KV can go to."""
    limit, source = sequence.limit, kv_home(sequence)
    taking = [one for one in among if one.takes(limit)]
    return [one for one in taking if source in (None, one.index) or links.up(source, one.index)]


def kv_home(sequence: Sequence) -> int | None:
    """The instance that has a sequence's KV; None: it has none, and is computed anew."""
    if sequence.slot < 0 and not sequence.residence.parked_tokens:
        return None
    remote_kv = sequence.residence.remote_kv
    return sequence.instance if remote_kv is None else remote_kv.instance
