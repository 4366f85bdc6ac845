"""Dispatch: the choice of the instance that a sequence is queued at, at first and again."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listing
from itertools import islice
from typing import Protocol

import numpy as np

from daemon.core.instance.instance import Instance, WorkerState, able_to_hold
from daemon.core.migration.destinations import kv_home
from daemon.core.migration.migration import Migrator
from daemon.core.placing.asleep import NEVER_SHORT, Asleep
from daemon.core.placing.candidate import InstanceView
from daemon.core.values.events import Configured
from daemon.placement import placement_named
from daemon.placement.balance import may_leave
from daemon.placement.base import Newcomer, Placement
from daemon.placement.by_role import preferred
from daemon.placement.rebalance import NO_ERROR, PlanError, moves
from daemon.scheduler.running import Running
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.state.story import What

LOOK = 16
"""Most waiting sequences of an instance that are looked at for rebalancing."""

Decide = Callable[[Sequence, Listing[Instance], Role, float], Instance]
"""Chooses which of several instances takes a sequence, for the work of a role."""
Timed = Callable[[Decide], Decide]
"""Wraps a decision, to take its time."""


def overrun(running: Running) -> PlanError:
    """The plan error of sequences that run though they were likely to have ended."""
    known = running.known
    late = known > running.likely_end
    return PlanError(int(np.add.reduce(known[late])), int(np.count_nonzero(late)))


def early(ended: list[Sequence]) -> PlanError:
    """The plan error of sequences that ended earlier than was likely."""
    lacking = [
        sequence.predicted_tokens - sequence.num_output_tokens
        for sequence in ended
        if sequence.predicted_tokens > sequence.num_output_tokens
    ]
    return PlanError(-sum(lacking), -len(lacking))


def untimed(decide: Decide) -> Decide:
    """A decision without a wrapper."""
    return decide


class Dispatched(Protocol):
    """The part of the Core that dispatch uses."""

    config: Configured
    instances: list[Instance]
    sequences: dict[int, Sequence]
    migrator: Migrator
    touched: set[int]

    def touch(self, index: int) -> Instance:
        """Note that this event changes an instance; returns it."""

    def wake(self, instance: Instance, now: float) -> None:
        """Start the worker of an asleep instance."""

    def unplaceable(self, sequence: Sequence, now: float) -> None:
        """Fail a sequence that no instance can ever hold."""


class Dispatch:
    """Asks the placement, and queues sequences where it says."""

    def __init__(self, core: Dispatched, timed: Timed = untimed) -> None:
        self._core = core
        self.placement: Placement = placement_named(core.config.placement)
        self._decide_timed = timed(self._decide)
        self.asleep = Asleep(core.instances)
        self._views: dict[int, InstanceView] = {}  # of unchanged instances

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
        able = able or [instance for instance in instances if instance.state in coming]
        if not able:
            self._core.unplaceable(sequence, now)
            return
        wanted = Role.PREFILL
        if sequence.num_output_tokens:
            wanted, pledges = Role.DECODE, self._core.migrator.pledges
            able = [instance for instance in able if pledges.keeps(sequence, instance)] or able
        if wanted is Role.PREFILL and self.asleep.any:
            self._wake(sequence, able, now)
        chosen, left = self.choose(sequence, able, wanted, now), sequence.instance
        if is_anew and chosen.index != left:
            sequence.story.add(now, What.MOVED, left)
        self._core.touch(chosen.index).scheduler.add(sequence, now)
        if wanted is Role.PREFILL:
            self._core.migrator.pair(sequence, chosen, now)

    def _wake(self, sequence: Sequence, able: Listing[Instance], now: float) -> None:
        """Wake an instance if a newcomer needs one beside those that are able to take it."""
        if not all(instance.state is WorkerState.READY for instance in able):
            return  # they are lost, and start again as soon as another would
        staying = [instance for instance in able if not instance.drained]
        newcomer, views = self._newcomer(sequence, now), self._views_of(staying, sequence)
        if sleeper := self.asleep.to_wake(newcomer, views, self.placement):
            self._core.wake(sleeper, now)

    def look(self, now: float) -> None:
        """Wake an instance, if none that is awake has had room for as long as that takes: for the
        sequence that waits longest, else for one like the newest.
        """
        homes = [instance for instance in self._core.instances if instance.takes(0)]
        waiting = (sequence for home in homes for sequence in home.scheduler.waiting)
        fresh = (sequence for sequence in waiting if not sequence.num_output_tokens)
        longest = min(fresh, key=lambda sequence: sequence.waiting_since_s, default=None)
        asked = longest or next(reversed(self._core.sequences.values()), None)
        if asked is None or not self.asleep.any:
            self.asleep.end_shortage()
            return
        newcomer, since_s = self._newcomer(asked, now), asked.waiting_since_s
        if longest is None:
            newcomer, since_s = newcomer._replace(brings_kv=False, arrived_s=now), NEVER_SHORT
        views = self._views_of([home for home in homes if home.takes(asked.limit)], asked)
        if sleeper := self.asleep.to_wake(newcomer, views, self.placement, since_s):
            self._core.wake(sleeper, now)

    def choose(
        self, sequence: Sequence, among: Listing[Instance], wanted: Role, now: float
    ) -> Instance:
        """The instance that placement chooses, by role and then by its view of each."""
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
        """The views of these instances; an unchanged instance keeps its earlier one."""
        core, views, found = self._core, self._views, []
        migrations, touched = core.migrator.migrations, core.touched
        targets, pairs = migrations.targets, core.migrator.pairs
        for home in pool:
            index = home.index
            if index in targets or index in pairs:  # a coming sequence grows where it is
                coming = (*migrations.coming(index), *core.migrator.paired(index))
                others = [sequence for sequence in coming if sequence is not newcomer]
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
        """Drop the views of changed instances."""
        for index in changed:
            self._views.pop(index, None)

    def _newcomer(self, sequence: Sequence, now: float) -> Newcomer:
        config, known = self._core.config, sequence.num_known_tokens
        if sequence.slot >= 0:
            running = self._core.instances[sequence.instance].scheduler.running
            known = running.delivered_of(sequence)
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
        """The likely steps of a sequence without a prediction, by ended answers. One instance's are
        enough, but where others decode, none has ended at the first.
        """
        homes = [instance.scheduler for instance in self._core.instances]
        home = next((home for home in homes if home.knows_length_of(sequence)), homes[0])
        return home.left_of(sequence).steps

    def on_predicted(self, sequence: Sequence, now: float) -> None:
        """Place an unbegun sequence anew, if placement looks at its predicted length."""
        if len(self._core.instances) == 1 or not self.placement.looks_at_lengths:
            return
        if sequence.started or sequence.slot >= 0 or not may_leave(sequence):
            return
        home = self._core.touch(sequence.instance)
        home.scheduler.withdraw(sequence)
        self.place(sequence, now, is_anew=True)

    def on_ended(self, index: int, ended: list[Sequence], now: float) -> None:
        """Rebalance after answers ended at an instance: others may come from where some run on."""
        if len(self._core.instances) == 1 or not self.placement.rebalances or index < 0:
            return
        home = self._core.instances[index]
        error_s = self._error_s(home, early(ended))
        givers = [
            (self._error_s(instance), instance)
            for instance in self._core.instances
            if error_s < 0.0 and instance is not home and instance.scheduler.waiting
        ]
        for giver_s, giver in sorted(givers, key=lambda pair: (-pair[0], pair[1].index)):
            if giver_s > 0.0 > error_s:
                error_s = self._relieve(giver, home, giver_s, error_s, now)

    def _error_s(self, home: Instance, more: PlanError = NO_ERROR) -> float:
        here = overrun(home.scheduler.running)
        error = PlanError(here.tokens + more.tokens, here.num + more.num)
        return error.seconds(home.step_time)

    def _relieve(
        self, giver: Instance, taker: Instance, giver_s: float, taker_s: float, now: float
    ) -> float:
        """Move waiting sequences as far as that lessens both errors; returns the taker's error
        then.
        """
        able = [
            waiting
            for waiting in islice(giver.scheduler.waiting, LOOK)
            if not (waiting.started or waiting.rebalanced) and may_leave(waiting)
            if taker.takes(waiting.limit) and taker.suits(waiting)
        ]
        loads = [PlanError(sequence.likely_length, 1) for sequence in able]
        costs = ((load.seconds(giver.step_time), load.seconds(taker.step_time)) for load in loads)
        found = list(moves(giver_s, taker_s, costs))
        for number, *_ in found:
            able[number].rebalanced = True
            self._core.migrator.begin(able[number], taker.index, now)
        return found[-1][2] if found else taker_s
