"""Choices of roles: what free instances may be made, what each choice comes to, and the fleet."""

from collections.abc import Iterable
from collections.abc import Sequence as Listing

from daemon.core.instance import Instance
from daemon.core.transfers import LinkEnds
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.roles.forecast import Costs, Fleet, Split
from daemon.scheduler.step import LEAST_SHARE
from daemon.state.role import Role

LEAST_STEPS = 64
"""So many steps of a kind tell what they take."""
TYPICAL = StepWork(16, 16 * 512, ((128, 128),), 16)
"""A step that instances are compared by."""
ALIKE = 1.5
"""Cards of one model take times that differ by less, as they are learned."""


def present(free: Listing[Instance], usable: Listing[Instance]) -> str:
    """The choice that is in force; "" for roles that no choice has. Where none is free it is what
    those that are pinned come to.
    """
    roles = {one.role for one in free or usable}
    if roles <= {Role.MIXED}:
        return str(Split(0, 1))
    if Role.MIXED in roles:
        return ""
    every = [one.role for one in usable]
    return str(Split(every.count(Role.PREFILL), every.count(Role.DECODE)))


def mixed(usable: Listing[Instance], pinned: Iterable[int]) -> Split:
    """What there is where all free instances do both. An instance that is pinned to prompts gets
    them first, as placement has it.
    """
    kept = [one.role for one in usable if one.index in pinned]
    num_prefill, num_decode = kept.count(Role.PREFILL), kept.count(Role.DECODE)
    num_mixed = len(usable) - num_prefill - num_decode
    if num_prefill and (num_decode or num_mixed):
        return Split(num_prefill, num_decode or num_mixed)
    return Split(0, max(1, num_mixed))


def splits(usable: Listing[Instance], pinned: Iterable[int]) -> list[Split]:
    """All that free instances can be apart, with those that are pinned."""
    kept = [one.role for one in usable if one.index in pinned]
    num_free = len(usable) - len(kept)
    if not num_free:
        return []
    num_prefill, num_decode = kept.count(Role.PREFILL), kept.count(Role.DECODE)
    made = [
        Split(num_prefill + count, num_decode + num_free - count) for count in range(num_free + 1)
    ]
    return [one for one in made if one.prefill and one.decode]


def assigned(
    choice: str, free: Listing[Instance], usable: Listing[Instance]
) -> list[tuple[Instance, Role]]:
    """Who becomes what, of those that change. Who draws for many stays with that. New decode
    instances come first, so that there is a place for what leaves the others.
    """
    if choice == str(Split(0, 1)):
        return [(one, Role.MIXED) for one in free if one.role is not Role.MIXED]
    wanted = int(choice.partition(":")[0])
    members = {one.index for one in free}
    wanted -= sum(one.role is Role.PREFILL for one in usable if one.index not in members)
    order = sorted(free, key=_least_drawn)
    prefill = {one.index for one in order[:wanted]}
    roles = [(one, Role.PREFILL if one.index in prefill else Role.DECODE) for one in free]
    changed = [(one, role) for one, role in roles if one.role is not role]
    return sorted(changed, key=lambda pair: (pair[1] is Role.PREFILL, pair[0].index))


def _least_drawn(one: Instance) -> tuple[bool, int, int]:
    return one.role is not Role.PREFILL, one.scheduler.num_running, one.index


def are_alike(instances: Iterable[Instance]) -> bool:
    """Whether one forecast is right for all of them: for devices of a kind that take like times."""
    kinds, times = set(), []
    for one in instances:
        device = one.config.device
        kinds.add((device.partition(":")[0], device.count(","), one.config.stages))
        times.append(one.step_time.predict_s(TYPICAL))
    return len(kinds) == 1 and max(times) <= ALIKE * min(times)


def bending(instances: Iterable[Instance]) -> str:
    """Between what bounds promises choose the chunks of prompts, in words; empty: nowhere."""
    chunks = [one.limits.prefill_chunk for one in instances if one.config.chunk_is_own]
    if not chunks:
        return ""
    return f"; chunks of {max(1, int(LEAST_SHARE * min(chunks)))} to {max(chunks)}"


def are_linked(instances: Listing[Instance], links: LinkEnds) -> bool:
    """Whether keys and values can go from each to each other."""
    return all(
        links.up(one.index, other.index)
        for one in instances
        for other in instances
        if one is not other
    )


def fleet(
    usable: Listing[Instance],
    decoding: StepTimeModel,
    prompts: StepTimeModel,
    links: LinkEnds,
    prompt_tokens: float,
) -> Fleet:
    """What is known of the instances and of their steps: with rows that draw, and without."""
    costs = Costs(*decoding.terms)
    alone = Costs(*prompts.terms) if prompts.num_observed >= LEAST_STEPS else costs
    block_size = usable[0].scheduler.kv.block_size
    blocks = max(1, round(prompt_tokens / block_size))
    times = [time_s for one in links.known_times() if (time_s := one.predict_s(blocks))]
    return Fleet(
        costs=costs,
        alone=alone,
        kv_tokens=max(1, min(one.capacity_tokens for one in usable)),
        max_running=min(one.limits.max_running for one in usable),
        budget_tokens=min(one.step_tokens for one in usable),
        chunk_tokens=min(one.limits.prefill_chunk for one in usable),
        transfer_s=sum(times) / len(times) if times else 0.0,
        bends=all(one.config.chunk_is_own for one in usable),
    )
