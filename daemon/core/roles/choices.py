"""Choices of roles: the possible splits, their assignment to instances, and their fleets."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Listing

from daemon.core.instance.instance import Instance
from daemon.core.migration.transfers import LinkEnds
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.roles.forecast import Costs, Fleet, Split
from daemon.roles.load import OfferedLoad
from daemon.scheduler.step import LEAST_SHARE
from daemon.state.role import Role

LEAST_STEPS = 64
"""Steps of a kind that are enough to know their times."""
TYPICAL = StepWork(16, 16 * 512, ((128, 128),), 16)
"""A step by which instances are compared."""
ALIKE = 1.5
"""The largest ratio of learned times between cards of one model."""


def present(free: Listing[Instance], usable: Listing[Instance]) -> str:
    """The choice in force; "" for roles that no choice has. Where no instance is free it is that of
    the pinned ones.
    """
    roles = {instance.role for instance in free or usable}
    if roles <= {Role.MIXED}:
        return str(Split(0, 1))
    if Role.MIXED in roles:
        return ""
    every = [instance.role for instance in usable]
    return str(Split(every.count(Role.PREFILL), every.count(Role.DECODE)))


def mixed(usable: Listing[Instance], pinned: Iterable[int]) -> Split:
    """The split where all free instances are mixed. An instance pinned to prefill gets prompts
    first, as placement does.
    """
    kept = [instance.role for instance in usable if instance.index in pinned]
    num_prefill, num_decode = kept.count(Role.PREFILL), kept.count(Role.DECODE)
    num_mixed = len(usable) - num_prefill - num_decode
    if num_prefill and (num_decode or num_mixed):
        return Split(num_prefill, num_decode or num_mixed)
    return Split(0, max(1, num_mixed))


def splits(usable: Listing[Instance], pinned: Iterable[int]) -> list[Split]:
    """All splits that free instances can form with the pinned ones."""
    kept = [instance.role for instance in usable if instance.index in pinned]
    num_free = len(usable) - len(kept)
    if not num_free:
        return []
    num_prefill, num_decode = kept.count(Role.PREFILL), kept.count(Role.DECODE)
    made = [
        Split(num_prefill + count, num_decode + num_free - count) for count in range(num_free + 1)
    ]
    return [split for split in made if split.prefill and split.decode]


def assigned(
    choice: str, free: Listing[Instance], usable: Listing[Instance]
) -> list[tuple[Instance, Role]]:
    """The instances that change role, with their new roles. Busy decoders keep theirs. New decode
    instances come first, so that there is a place for what leaves the others.
    """
    if choice == str(Split(0, 1)):
        return [(instance, Role.MIXED) for instance in free if instance.role is not Role.MIXED]
    wanted = int(choice.partition(":")[0])
    members = {instance.index for instance in free}
    wanted -= sum(
        instance.role is Role.PREFILL for instance in usable if instance.index not in members
    )
    order = sorted(free, key=_fewest_decodes)
    prefill = {instance.index for instance in order[:wanted]}
    roles = [
        (instance, Role.PREFILL if instance.index in prefill else Role.DECODE) for instance in free
    ]
    changed = [(instance, role) for instance, role in roles if instance.role is not role]
    return sorted(changed, key=lambda pair: (pair[1] is Role.PREFILL, pair[0].index))


def _fewest_decodes(instance: Instance) -> tuple[bool, int, int]:
    return instance.role is not Role.PREFILL, instance.scheduler.num_running, instance.index


def are_alike(instances: Iterable[Instance]) -> bool:
    """Whether one forecast holds for all instances: devices of a kind with similar times."""
    kinds, times = set(), []
    for instance in instances:
        device = instance.config.device
        kinds.add((device.partition(":")[0], device.count(","), instance.config.stages))
        times.append(instance.step_time.predict_s(TYPICAL))
    return len(kinds) == 1 and max(times) <= ALIKE * min(times)


def bending(instances: Iterable[Instance]) -> str:
    """The bounds of prompt chunks chosen by the SLO, in words; empty: none are chosen."""
    chunks = [
        instance.limits.prefill_chunk for instance in instances if instance.config.chunk_is_own
    ]
    if not chunks:
        return ""
    return f"; chunks of {max(1, int(LEAST_SHARE * min(chunks)))} to {max(chunks)}"


def are_linked(instances: Listing[Instance], links: LinkEnds) -> bool:
    """Whether KV can go from each instance to each other."""
    return all(
        links.up(instance.index, other.index)
        for instance in instances
        for other in instances
        if instance is not other
    )


def fleets(
    usable: Listing[Instance],
    decoding: StepTimeModel,
    prompts: StepTimeModel,
    links: LinkEnds,
    load: OfferedLoad,
) -> list[tuple[Fleet, int]]:
    """Fleets for forecasts of a load: the times of steps with decodes and without, and the limits
    of a step, of which each kind has a fleet with the number of its instances.
    """
    costs = Costs(*decoding.terms)
    alone = Costs(*prompts.terms) if prompts.num_observed >= LEAST_STEPS else costs
    kv = usable[0].kv
    block_tokens = kv.block_size / kv.blocks_each(load.prompt_tokens)
    blocks = max(1, round(load.prompt_tokens / block_tokens))
    times = [time_s for link in links.known_times() if (time_s := link.predict_s(blocks))]
    kinds = Counter((home.step_tokens, home.limits.prefill_chunk) for home in usable)
    kv_tokens = max(1, min(home.kv.pool_tokens_at(load.decode_context) for home in usable))
    max_running = min(instance.limits.max_running for instance in usable)
    bends = all(instance.config.chunk_is_own for instance in usable)
    return [
        (
            Fleet(
                costs=costs,
                alone=alone,
                kv_tokens=kv_tokens,
                max_running=max_running,
                budget_tokens=budget,
                chunk_tokens=chunk,
                transfer_s=sum(times) / len(times) if times else 0.0,
                bends=bends,
            ),
            num,
        )
        for (budget, chunk), num in sorted(kinds.items())
    ]
