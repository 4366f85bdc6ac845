"""Dispatch: which instance a sequence is queued at, at first and again."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listing
from itertools import islice
from typing import Protocol

import numpy as np

from daemon.core.candidate import InstanceView
from daemon.core.destinations import kv_home
from daemon.core.events import Configured
from daemon.core.instance import Instance, WorkerState, able_to_hold
from daemon.core.migration import Migrator
from daemon.placement import placement_named
from daemon.placement.balance import may_leave
from daemon.placement.base import Newcomer, Placement
from daemon.placement.by_role import preferred
from daemon.placement.rebalance import NO_ERROR, PlanError, moves
from daemon.scheduler.slots import SlotTable
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.state.story import What

LOOK = 16
"""So many that wait at an instance are looked at when others outran their predictions."""

Decide = Callable[[Sequence, Listing[Instance], Role, float], Instance]
"""Which of several instances takes a sequence, for the work of a role."""
Timed = Callable[[Decide], Decide]
"""The same decision, with something around it."""


def overrun(table: SlotTable) -> PlanError:
    """By those that run though they were likely to have ended: they are not to be there."""
    order = table.order()
    known = table.known[order]
    late = known > table.likely_end[order]
    return PlanError(int(np.add.reduce(known[late])), int(np.count_nonzero(late)))


def early(ended: list[Sequence]) -> PlanError:
    """By those that have ended before they were likely to: what would have come is not there."""
    lacking = [
        one.predicted_tokens - one.num_output_tokens
        for one in ended
        if one.predicted_tokens > one.num_output_tokens
    ]
    return PlanError(-sum(lacking), -len(lacking))


def untimed(decide: Decide) -> Decide:
    """A decision as it is."""
    return decide


class Dispatched(Protocol):
    """What dispatch asks of the Core."""

    config: Configured
    instances: list[Instance]
    migrator: Migrator
    touched: set[int]

    def touch(self, index: int) -> Instance:
        """An instance that this event changes."""

    def unplaceable(self, sequence: Sequence, now: float) -> None:
        """No instance can ever hold a sequence: it fails."""


class Dispatch:
    """Asks the placement, and queues sequences where it says."""

    def __init__(self, core: Dispatched, timed: Timed = untimed) -> None:
        self._core = core
        self.placement: Placement = placement_named(core.config.placement)
        self._decide_timed = timed(self._decide)
        self._views: dict[int, InstanceView] = {}  # of those that did not change since

    def use(self, name: str) -> None:
        """Place by another placement from now on."""
        self.placement = placement_named(name)

    def place(self, sequence: Sequence, now: float, is_anew: bool = False) -> None:
        """Queue a sequence where placement chooses; it fails if no instance can ever hold it.

        `is_anew`: it was queued already, and comes from there.
        """
        instances = self._core.instances
        able = able_to_hold(instances, sequence.limit)
        coming = (WorkerState.LOADING, WorkerState.LOST)
        able = able or [one for one in instances if one.state in coming]
        if not able:
            self._core.unplaceable(sequence, now)
            return
        wanted = Role.PREFILL
        if sequence.num_output_tokens:
            wanted, pledges = Role.DECODE, self._core.migrator.pledges
            able = [one for one in able if pledges.keeps(sequence, one)] or able
        chosen, left = self.choose(sequence, able, wanted, now), sequence.instance
        if is_anew and chosen.index != left:
            sequence.story.add(now, What.MOVED, left)
        self._core.touch(chosen.index).scheduler.add(sequence, now)

    def choose(
        self, sequence: Sequence, among: Listing[Instance], wanted: Role, now: float
    ) -> Instance:
        """The instance that placement chooses, by role and then by what it is told of each."""
        return among[0] if len(among) == 1 else self._decide_timed(sequence, among, wanted, now)

    def _decide(
        self, sequence: Sequence, among: Listing[Instance], wanted: Role, now: float
    ) -> Instance:
        pool = preferred(among, wanted)
        if len(pool) == 1:
            return pool[0]
        newcomer, candidates = self._newcomer(sequence, now), self._views_of(pool, sequence)
        return self._core.instances[self.placement.choose(newcomer, candidates, sequence.id)]

    def _views_of(self, pool: Listing[Instance], newcomer: Sequence) -> list[InstanceView]:
        """What is seen of these instances; where nothing has changed, as it was seen before."""
        core, views, found = self._core, self._views, []
        moves, touched = core.migrator.migrations, core.touched
        targets = moves.targets
        for home in pool:
            index = home.index
            if index in targets:  # who is on its way grows where it is
                others = [one for one in moves.coming(index) if one is not newcomer]
                found.append(InstanceView(home, others))
            elif index in touched:
                found.append(InstanceView(home))
            else:
                view = views.get(index)
                if view is None:
                    view = views[index] = InstanceView(home)
                found.append(view)
        return found

    def forget(self, changed: Iterable[int]) -> None:
        """Look at these instances anew: what touched them is over."""
        for index in changed:
            self._views.pop(index, None)

    def _newcomer(self, sequence: Sequence, now: float) -> Newcomer:
        config, known = self._core.config, sequence.num_known_tokens
        if sequence.slot >= 0:
            table = self._core.instances[sequence.instance].scheduler.slots
            known = int(table.delivered[sequence.slot])
        outputs = known - sequence.num_prompt_tokens
        likely = sequence.likely_length
        if sequence.predicted_tokens < 0 and self.placement.looks_at_lengths:
            likely = sequence.num_known_tokens + self._left_steps(sequence)
        return Newcomer(
            sequence=sequence.id,
            num_tokens=known,
            likely_length=max(known + 1, likely),
            num_outputs=outputs,
            brings_kv=kv_home(sequence) is not None,
            now=now,
            arrived_s=sequence.arrived_s,
            slo_ttft_s=config.slo_ttft_s,
            slo_tpot_s=config.slo_tpot_s,
            hashes=sequence.hashes,
        )

    def _left_steps(self, sequence: Sequence) -> int:
        """Steps that a sequence without a prediction is likely to take, by answers that were. One
        instance's are enough, but where others draw tokens none has ended at the first.
        """
        homes = [one.scheduler for one in self._core.instances]
        home = next((one for one in homes if one.knows_length_of(sequence)), homes[0])
        return home.left_of(sequence).steps

    def on_predicted(self, sequence: Sequence, now: float) -> None:
        """Place one anew that has not begun, if that depends on its length, which is known now."""
        if len(self._core.instances) == 1 or not self.placement.looks_at_lengths:
            return
        if sequence.started or sequence.slot >= 0 or not may_leave(sequence):
            return
        home = self._core.touch(sequence.instance)
        home.scheduler.withdraw(sequence)
        self.place(sequence, now, is_anew=True)

    def on_ended(self, index: int, ended: list[Sequence], now: float) -> None:
        """Answers ended at an instance: those that wait where others run on may come instead."""
        if len(self._core.instances) == 1 or not self.placement.rebalances or index < 0:
            return
        home = self._core.instances[index]
        error_s = self._error_s(home, early(ended))
        givers = [
            (self._error_s(one), one)
            for one in self._core.instances
            if error_s < 0.0 and one is not home and one.scheduler.waiting
        ]
        for giver_s, giver in sorted(givers, key=lambda pair: (-pair[0], pair[1].index)):
            if giver_s > 0.0 > error_s:
                error_s = self._relieve(giver, home, giver_s, error_s, now)

    def _error_s(self, home: Instance, more: PlanError = NO_ERROR) -> float:
        here = overrun(home.scheduler.slots)
        error = PlanError(here.tokens + more.tokens, here.num + more.num)
        return error.seconds(home.step_time)

    def _relieve(
        self, giver: Instance, taker: Instance, giver_s: float, taker_s: float, now: float
    ) -> float:
        """Move who waits, as far as that lessens both errors; the taker's after that."""
        able = [
            one
            for one in islice(giver.scheduler.waiting, LOOK)
            if not (one.started or one.rebalanced) and may_leave(one)
            if taker.takes(one.limit) and taker.suits(one)
        ]
        loads = [PlanError(one.likely_length, 1) for one in able]
        costs = ((of.seconds(giver.step_time), of.seconds(taker.step_time)) for of in loads)
        found = list(moves(giver_s, taker_s, costs))
        for number, *_ in found:
            able[number].rebalanced = True
            self._core.migrator.begin(able[number], taker.index, now)
        return found[-1][2] if found else taker_s
