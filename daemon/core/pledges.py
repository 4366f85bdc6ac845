"""Pledges: who will go on at another instance is counted there, from when that is certain.

A prompt that begins where prompts are computed for others will draw its answer elsewhere; so it
begins only if an instance there can keep it at the promised pace, and has its place there. So has
everybody that is to leave an instance. Without it whoever comes would have begun already, and
nobody could refuse it.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

from daemon.core.instance import Instance
from daemon.scheduler.pace import MOST_POOLS, StreamPace
from daemon.state.role import Role
from daemon.state.sequence import Sequence

PROMPT_SHARE = 0.25
"""Of the pool of an instance that computes prompts for others, what streams leave to prompts that
come there for want of room elsewhere."""


@dataclass(slots=True, frozen=True)
class Pledge:
    """A place that a sequence has where it will go on."""

    source: int
    target: int
    num_tokens: int  # that it was expected to need


class Pledges:
    """The places of all that run and will go on elsewhere."""

    def __init__(
        self, instances: Listing[Instance], homes: Callable[[Sequence, Instance], list[Instance]]
    ) -> None:
        """`homes` are the instances that may draw the answer of a prompt, by its instance."""
        self._instances = instances
        self._homes = homes
        self._by_sequence: dict[int, Pledge] = {}
        if len(instances) > 1:
            for one in instances:
                pace_of(one).elsewhere = _Elsewhere(self, one)

    def values(self) -> Listing[tuple[int, Pledge]]:
        """(sequence, its place) of all of them."""
        return list(self._by_sequence.items())

    def target(self, sequence: Sequence) -> int:
        """Where a sequence has a place; -1: nowhere."""
        pledge = self._by_sequence.get(sequence.id)
        return -1 if pledge is None else pledge.target

    def give(self, sequence: Sequence, source: int, target: int) -> None:
        """One that runs has a place at another instance, and no other place any more."""
        self.drop(sequence.id)
        pledge = Pledge(source, target, sequence.expected_length)
        self._by_sequence[sequence.id] = pledge
        self._count(pledge, 1)

    def drop(self, sequence: int) -> None:
        """One has come, has ended, or stays."""
        pledge = self._by_sequence.pop(sequence, None)
        if pledge is not None:
            self._count(pledge, -1)

    def drop_of(self, instance: int) -> None:
        """An instance died, or has another role: who was to leave it, or to come, has no place."""
        for sequence, pledge in self.values():
            if instance in (pledge.source, pledge.target):
                self.drop(sequence)

    def _count(self, pledge: Pledge, sign: int) -> None:
        here, there = (pace_of(self._instances[i]) for i in (pledge.source, pledge.target))
        here.num_leaving += sign
        here.num_leaving_tokens += sign * pledge.num_tokens
        there.num_coming += sign
        there.num_coming_tokens += sign * pledge.num_tokens

    # Where there is room

    def keeps(self, sequence: Sequence, target: Instance, most_pools: float = MOST_POOLS) -> bool:
        """Whether an instance can keep a stream that comes, or has kept its place."""
        if self.target(sequence) == target.index:
            return True
        return pace_of(target).keeps(sequence, target.scheduler.kv, most_pools)

    def has_room(self, sequence: Sequence, target: Instance) -> bool:
        """Whether an instance can keep a stream that comes without anybody giving way for it: what
        is held there for those that go on elsewhere, and have not fetched it, is no room.
        """
        kv, held = target.scheduler.kv, target.scheduler.moving.remote_kvs.num_blocks
        if held and held + kv.blocks_for(sequence.expected_length) > kv.pool.num_blocks:
            return False
        pools = 1.0 - held / max(1, kv.pool.num_blocks)
        if target.role is Role.PREFILL:
            pools -= PROMPT_SHARE
        return self.keeps(sequence, target, pools)

    def homes(self, sequence: Sequence, source: Instance) -> list[Instance]:
        """Where the answer of a prompt that is computed for others may be drawn."""
        prefills = source.role is Role.PREFILL and not source.drained
        return self._homes(sequence, source) if prefills else []


class _Elsewhere:
    """What one instance is told of the others."""

    def __init__(self, pledges: Pledges, here: Instance) -> None:
        self._pledges = pledges
        self._here = here

    def keeps(self, sequence: Sequence) -> bool | None:
        """Whether one of them can keep a stream more; None: its answer is drawn here."""
        homes = self._pledges.homes(sequence, self._here)
        return any(self._pledges.keeps(sequence, one) for one in homes) if homes else None

    def began(self, sequence: Sequence) -> None:
        """A sequence has begun here: it is counted where its answer will be drawn."""
        homes = self._pledges.homes(sequence, self._here)
        kept = [one for one in homes if self._pledges.keeps(sequence, one)]
        if kept:
            target = min(kept, key=lambda one: pace_of(one).num_tokens / one.capacity_tokens)
            self._pledges.give(sequence, self._here.index, target.index)

    def stays(self, sequence: Sequence) -> None:
        """It gave way, and is not certain to come there any more."""
        self._pledges.drop(sequence.id)


def pace_of(instance: Instance) -> StreamPace:
    """The pace of an instance's streams."""
    return instance.scheduler.pace
