"""Destinations: who should not stay at an instance, and where they may go."""

from daemon.core.instance import Instance
from daemon.core.transfers import Links
from daemon.role import Role
from daemon.sequence import Sequence


def misplaced(instance: Instance) -> list[Sequence]:
    """Those that should not stay: all, where it is drained; where it computes prompts for others,
    those that draw tokens, and those whose prompts run, as they will.
    """
    table = instance.scheduler.slots
    running = [table.member(slot) for slot in table.order().tolist()]
    if instance.drained:
        return [*running, *instance.scheduler.waiting]
    if instance.role is not Role.PREFILL:
        return []
    waiting = [one for one in instance.scheduler.waiting if one.num_output_tokens]
    return [*running, *waiting]


def is_prompt(home: Instance, sequence: Sequence) -> bool:
    """Whether a running sequence has not got its first token."""
    delivered = int(home.scheduler.slots.delivered[sequence.slot])
    return delivered <= sequence.num_prompt_tokens


def destinations(
    sequence: Sequence, source: Instance, instances: list[Instance], links: Links
) -> list[Instance]:
    """Where one that is to leave may go: where its role is, or, from an instance that is drained,
    anywhere if there is no such place.
    """
    able = [
        one
        for one in instances
        if one is not source and one.takes(sequence.limit) and _reaches(sequence, one, links)
    ]
    begun = sequence.num_output_tokens > 0 or not source.drained
    wanted = (Role.DECODE if begun else Role.PREFILL, Role.MIXED)
    fitting = [one for one in able if one.role in wanted]
    return able if source.drained and not fitting else fitting


def _reaches(sequence: Sequence, target: Instance, links: Links) -> bool:
    """Whether its KV, if it has any, can go there."""
    if sequence.slot < 0 and not sequence.residence.parked_tokens:
        return True
    parcel = sequence.residence.parcel
    source = parcel.instance if parcel is not None else sequence.instance
    return source == target.index or links.up(source, target.index)
