"""Destinations: the sequences that should leave an instance, and their possible targets."""

from itertools import islice

from daemon.core.instance.instance import Instance
from daemon.core.migration.transfers import LinkEnds
from daemon.state.role import Role
from daemon.state.sequence import Sequence

LOOK = 64
"""Most waiting sequences that are looked at after each step."""


def misplaced(instance: Instance) -> list[Sequence]:
    """The sequences that should leave: all of a drained instance; of a prefill instance those that
    decode, and those whose prompts run, as they will decode. Of many waiting ones the first.
    """
    running = instance.scheduler.running.sequences
    if instance.drained:
        return [*running, *islice(instance.scheduler.waiting, LOOK)]
    if instance.role is not Role.PREFILL:
        return []
    queue = instance.scheduler.waiting
    return [*running, *islice(queue.begun(), LOOK)] if queue.num_begun else running


def is_prompt(home: Instance, sequence: Sequence) -> bool:
    """Whether a running sequence has not got its first token."""
    return home.scheduler.running.delivered_of(sequence) <= sequence.num_prompt_tokens


def destinations(
    sequence: Sequence,
    source: Instance,
    instances: list[Instance],
    links: LinkEnds,
    overflows: bool = False,
) -> tuple[list[Instance], Role]:
    """(instances that a leaving sequence may go to, the role wanted there). From a drained instance
    it may go anywhere if none has that role; one that `overflows` may go anywhere, or stay.
    """
    begun = sequence.num_output_tokens > 0 or not source.drained
    wanted = Role.DECODE if begun else Role.PREFILL
    unfit = Role.PREFILL if begun else Role.DECODE
    others = [instance for instance in instances if instance is not source]
    if overflows:
        return [*_able(sequence, others, links), source], wanted
    fitting = _able(
        sequence, [instance for instance in others if instance.role is not unfit], links
    )
    return (_able(sequence, others, links) if source.drained and not fitting else fitting), wanted


def _able(sequence: Sequence, among: list[Instance], links: LinkEnds) -> list[Instance]:
    """The instances that could go on with a sequence, and that its KV can go to."""
    limit, source = sequence.limit, kv_home(sequence)
    taking = [instance for instance in among if instance.takes(limit)]
    return [
        instance
        for instance in taking
        if source in (None, instance.index) or links.up(source, instance.index)
    ]


def kv_home(sequence: Sequence) -> int | None:
    """The instance that has a sequence's KV; None: none has, and it is computed anew."""
    if sequence.slot < 0 and not sequence.residence.parked_tokens:
        return None
    remote_kv = sequence.residence.remote_kv
    return sequence.instance if remote_kv is None else remote_kv.instance
