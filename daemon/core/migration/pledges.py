"""Pledges: a sequence that will migrate is counted at its target, once that is certain.

A prompt that begins at a prefill instance will decode its answer elsewhere; so it begins only if an
instance there can keep it at its pace, and it has a place there. So has every sequence that is to
leave an instance. Without pledges a sequence would come when it has begun, and could not be
refused.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

from daemon.core.instance.instance import Instance
from daemon.scheduler.pace import MOST_POOLS
from daemon.state.role import Role
from daemon.state.sequence import Sequence

PROMPT_SHARE = 0.25
"""The share of a prefill instance's pool that streams, which come there for want of room elsewhere,
leave to prompts."""


@dataclass(slots=True, frozen=True)
class Pledge:
    """A sequence's place at the instance where it will go on."""

    source: int
    target: int
    num_tokens: int  # expected need


class Pledges:
    """The places of all running sequences that will migrate."""

    def __init__(
        self, instances: Listing[Instance], homes: Callable[[Sequence, Instance], list[Instance]]
    ) -> None:
        """`homes` gives the instances that may decode the answer of an instance's prompt."""
        self._instances = instances
        self._homes = homes
        self._by_sequence: dict[int, Pledge] = {}
        if len(instances) > 1:
            for instance in instances:
                instance.pace.elsewhere = _Elsewhere(self, instance)

    def values(self) -> Listing[tuple[int, Pledge]]:
        """(sequence, its place) of all pledges."""
        return list(self._by_sequence.items())

    def target(self, sequence: Sequence) -> int:
        """The instance where a sequence has a place; -1: none."""
        pledge = self._by_sequence.get(sequence.id)
        return -1 if pledge is None else pledge.target

    def give(self, sequence: Sequence, source: int, target: int) -> None:
        """Give a running sequence a place at another instance, in place of an earlier one."""
        self.drop(sequence.id)
        pledge = Pledge(source, target, sequence.expected_length)
        self._by_sequence[sequence.id] = pledge
        self._count(pledge, 1)

    def drop(self, sequence: int) -> None:
        """Drop the place of a sequence that has come, has ended, or stays."""
        pledge = self._by_sequence.pop(sequence, None)
        if pledge is not None:
            self._count(pledge, -1)

    def drop_of(self, instance: int) -> None:
        """Drop all places of sequences from or to an instance that died or has another role."""
        for sequence, pledge in self.values():
            if instance in (pledge.source, pledge.target):
                self.drop(sequence)

    def _count(self, pledge: Pledge, sign: int) -> None:
        here, there = (self._instances[i].pace for i in (pledge.source, pledge.target))
        here.num_leaving += sign
        here.num_leaving_tokens += sign * pledge.num_tokens
        there.num_coming += sign
        there.num_coming_tokens += sign * pledge.num_tokens

    # Room

    def keeps(self, sequence: Sequence, target: Instance, most_pools: float = MOST_POOLS) -> bool:
        """Whether an instance can keep a stream that comes, or has a place for it."""
        if self.target(sequence) == target.index:
            return True
        return target.pace.keeps(sequence, target.kv, most_pools)

    def has_room(self, sequence: Sequence, target: Instance) -> bool:
        """Whether an instance can keep a stream that comes without a preemption: remote KV there
        that is not fetched yet is no room.
        """
        kv, held = target.kv, target.moving.remote_kvs.num_blocks
        if held and held + kv.blocks_for(sequence.expected_length) > kv.pool.num_blocks:
            return False
        pools = 1.0 - held / max(1, kv.pool.num_blocks)
        if target.role is Role.PREFILL:
            pools -= PROMPT_SHARE
        return self.keeps(sequence, target, pools)

    def homes(self, sequence: Sequence, source: Instance) -> list[Instance]:
        """The instances that may decode the answer of a prompt computed for others."""
        prefills = source.role is Role.PREFILL and not source.drained
        return self._homes(sequence, source) if prefills else []


class _Elsewhere:
    """The other instances, as the pace of one instance sees them."""

    def __init__(self, pledges: Pledges, here: Instance) -> None:
        self._pledges = pledges
        self._here = here

    def keeps(self, sequence: Sequence) -> bool | None:
        """Whether one of them can keep a further stream; None: its answer is decoded here."""
        homes = self._pledges.homes(sequence, self._here)
        return any(self._pledges.keeps(sequence, home) for home in homes) if homes else None

    def began(self, sequence: Sequence) -> None:
        """Count a sequence that has begun here where its answer will be decoded."""
        homes = self._pledges.homes(sequence, self._here)
        kept = [home for home in homes if self._pledges.keeps(sequence, home)]
        if kept:
            target = min(kept, key=_fullness)
            self._pledges.give(sequence, self._here.index, target.index)

    def stays(self, sequence: Sequence) -> None:
        """Count a preempted sequence there no more: it is not certain to come."""
        self._pledges.drop(sequence.id)


def _fullness(home: Instance) -> float:
    """The share of a pool that the expected tokens of all its streams take."""
    return home.pace.pool_share(home.kv)
