"""Splitwise's mixed pool (section IV-A): instances that do work of the other role for a while.

An instance enters it as it gets such work, keeps its role, and returns when the work is done. What
finds no room in its own pool goes to the mixed pool, and only then to the opposite one. The paper
changes the role of an instance that stays for a considerable time; here that is a minute.
"""

from typing import Protocol

from daemon.core.instance.instance import Instance
from daemon.core.migration.migration import Migrator
from daemon.core.values.actions import Action, Noted
from daemon.core.values.events import Configured, FlipOrdered
from daemon.state.role import Role

LONG_S = 60.0
"""The time in the mixed pool after which an instance gets the other role."""
_OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


class PooledCore(Protocol):
    """The part of the Core that the mixed pool uses."""

    config: Configured
    instances: list[Instance]
    migrator: Migrator

    def act(self, action: Action) -> None:
        """Have the driver do something."""


class MixedPool:
    """Notes which instances are in the mixed pool, and changes the role of those that stay."""

    def __init__(self, core: PooledCore) -> None:
        self._core = core
        self.on = self._is_on

    @property
    def _is_on(self) -> bool:
        return self._core.config.mixed_pool and len(self._core.instances) > 1

    def reconfigure(self, now: float) -> None:
        """Begin or end as the Core's configuration says now."""
        if self.on and not self._is_on:
            for instance in self._core.instances:
                if instance.mixed_since_s >= 0.0:
                    self._return(instance, now)
        self.on = self._is_on

    def look(self, touched: set[int], kept: set[int], now: float) -> None:
        """See which of these instances do work of the other role; some keep theirs for ever."""
        for index in sorted(touched):
            instance = self._core.instances[index]
            num = 0 if instance.role is Role.MIXED else self._num_foreign(instance)
            since_s, name = instance.mixed_since_s, instance.config.name
            if num and since_s < 0.0:
                instance.mixed_since_s = now
                self._core.act(Noted(f"pools: {name} ({instance.role}) enters the mixed pool"))
            elif not num and since_s >= 0.0:
                self._return(instance, now)
            elif since_s >= 0.0 and now - since_s >= LONG_S and index not in kept:
                self._repurpose(instance, now)

    def _return(self, instance: Instance, now: float) -> None:
        stayed = f"to the {instance.role} pool after {now - instance.mixed_since_s:.1f} s"
        instance.mixed_since_s = -1.0
        self._core.act(Noted(f"pools: {instance.config.name} returns {stayed}"))

    def _repurpose(self, instance: Instance, now: float) -> None:
        """Give an instance the other role, unless it is the last of its own."""
        role = instance.role
        homes = [home for home in self._core.instances if home.takes(0)]
        if sum(home.role is role for home in homes) > 1:
            why = f"pools: {now - instance.mixed_since_s:.0f} s in the mixed pool"
            self._core.migrator.on_flip(FlipOrdered(now, instance.index, _OTHER[role], why))

    def _num_foreign(self, instance: Instance) -> int:
        """The sequences whose present work is that of the other role, and that do not leave."""
        scheduler, migrations = instance.scheduler, self._core.migrator.migrations
        queue, begun = scheduler.waiting, scheduler.running.begun
        if instance.role is Role.DECODE:
            return len(queue) - queue.num_begun + scheduler.num_running - len(begun)
        return queue.num_begun + sum(sequence.id not in migrations for sequence in begun)
