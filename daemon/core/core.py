"""The Core: `handle(event) -> list[Action]`, deterministic, with no clock and no I/O.

It owns every sequence and every instance's scheduler and memory. The runtime and the simulator
drive this same object.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from daemon.core.chores import Chores
from daemon.core.instance.instance import Instance, WorkerState
from daemon.core.instance.steady_steps import Flying, SteadySteps, StepClock, steady_steps
from daemon.core.migration.migration import Migrator
from daemon.core.placing.dispatch import Dispatch, Timed, untimed
from daemon.core.placing.intake import accepted, refused
from daemon.core.roles.mixed_pool import MixedPool
from daemon.core.roles.watcher import Watcher
from daemon.core.values.actions import (
    Action,
    Deliver,
    Emptied,
    Finished,
    Started,
    Submit,
    Wake,
    WakeAt,
)
from daemon.core.values.events import (
    Abort,
    BudgetChosen,
    Configured,
    CopiesDone,
    DrainBegun,
    Event,
    Finish,
    FlipOrdered,
    InstanceDrained,
    InstanceGivenUp,
    InstanceResumed,
    LinkChanged,
    MigrationOrdered,
    PlacementChosen,
    PolicyChosen,
    Predicted,
    Reconfigured,
    RequestArrived,
    Resumed,
    RolesChosen,
    Sealed,
    StepDone,
    Tick,
    TransferEnded,
    WorkerLost,
    WorkerReady,
)
from daemon.core.values.snapshot import Counters
from daemon.core.wakes import AT_ONCE, NEVER, Wakes
from daemon.cost.finish_rate import FinishRate
from daemon.memory.hashing import split_hashes
from daemon.placement.balance import Balancer
from daemon.scheduler.due import due_s
from daemon.scheduler.in_flight import Answer
from daemon.scheduler.suspects import DEADLY
from daemon.state.pause import Cause
from daemon.state.request import NO_PLACE, FinishReason, State
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.state.story import MAX_ENDED, What
from daemon.wire.columns import UInt8


class HeldBack:
    """The streams held back until their leader's prompt is computed, by the leader's id."""

    def __init__(self) -> None:
        self.by_leader: dict[int, list[Sequence]] = {}
        self._num = 0

    def __len__(self) -> int:
        """The number of streams held back."""
        return self._num

    def __contains__(self, sequence: Sequence) -> bool:
        """Whether it still waits for its leader's prompt."""
        leader = sequence.leader
        return leader is not None and sequence in self.by_leader.get(leader.id, ())

    def add(self, leader: Sequence, followers: list[Sequence]) -> None:
        """Hold followers back until the leader's prompt is computed, or the leader has ended."""
        self.by_leader[leader.id] = followers
        self._num += len(followers)
        for follower in followers:
            follower.leader = leader

    def remove(self, sequence: Sequence) -> None:
        """Forget a stream that ends; KeyError if it is not held back."""
        assert sequence.leader is not None
        self.by_leader[sequence.leader.id].remove(sequence)
        self._num -= 1

    def release(self, leader: Sequence) -> list[Sequence]:
        """Release and return the streams that waited for this leader."""
        followers = self.by_leader.pop(leader.id, [])
        self._num -= len(followers)
        return followers


def handlers(migrator: Migrator, watcher: Watcher) -> dict[type, Callable[[Any], None]]:
    """The migrator's and the watcher's handlers, by the event's type."""
    return {
        LinkChanged: migrator.on_link,
        TransferEnded: migrator.on_transfer,
        MigrationOrdered: migrator.on_migration,
        InstanceDrained: migrator.on_instance_drained,
        InstanceResumed: migrator.on_instance_resumed,
        FlipOrdered: watcher.on_flip,
        RolesChosen: watcher.on_chosen,
    }


def note_answer(counters: Counters, instance: Instance, sequence: Sequence, now: float) -> None:
    """Count an answer: its time per token, its prediction's error, and whether it was in time."""
    true = sequence.num_output_tokens
    if not true:
        return
    counters.note_answer(now - sequence.first_token_s, true, sequence.predicted_tokens)
    has_due = sequence.deadline_s or sequence.slo_scale
    if has_due and (due := due_s(sequence, instance.step_time, true)):
        counters.note_due(0.0 if sequence.deadline_s else sequence.slo_scale, now <= due)
    instance.scheduler.on_ended(sequence, now)


class Core:
    """The state machine of one daemon: requests, schedulers, their memory, and placement."""

    def __init__(self, config: Configured, timed: Timed = untimed) -> None:
        """`timed` may wrap each decision of placement, to take its time."""
        self.config = config
        self.instances = [Instance(i, own, config) for i, own in enumerate(config.instances)]
        self.sequences: dict[int, Sequence] = {}
        self.ended: deque[Sequence] = deque(maxlen=MAX_ENDED)  # newest last, for their stories
        self.held_back = HeldBack()
        self.counters = Counters()
        self.draining = False
        self.emptied = False  # `Emptied` was sent since it drains
        self._requests: dict[int, list[Sequence]] = {}
        self.num_arrivals = 0
        self.finish_rate = FinishRate()
        self.wake_at_s = NEVER
        self._wakes = Wakes(len(self.instances))
        self._balancer = Balancer(self.instances)
        self.chores = Chores()
        self.migrator = Migrator(self)
        self.dispatch = Dispatch(self, timed)
        self.watcher = Watcher(self)
        self.mixed_pool = MixedPool(self)
        self.touched = set(range(len(self.instances)))  # changed since the last balancing
        self._actions: list[Action] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            WorkerReady: self._on_worker_ready,
            WorkerLost: self._on_worker_lost,
            InstanceGivenUp: self._on_given_up,
            RequestArrived: self._on_arrived,
            Predicted: self._on_predicted,
            StepDone: self._on_step_done,
            CopiesDone: self._on_copied,
            PolicyChosen: self._on_chosen,
            BudgetChosen: self._on_chosen,
            PlacementChosen: self._on_placement_chosen,
            Sealed: self._on_sealed,
            Finish: self._on_finish,
            Abort: self._on_abort,
            DrainBegun: self._on_drain,
            Resumed: self._on_resumed,
            Reconfigured: self._on_reconfigured,
            Tick: self._on_tick,
            **handlers(self.migrator, self.watcher),
        }

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        queued = sum(len(instance.scheduler.waiting) for instance in self.instances)
        return queued + len(self.held_back)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return sum(instance.scheduler.num_running for instance in self.instances)

    @property
    def idle(self) -> bool:
        """Whether no sequence lives and no step or swap copy is in flight."""
        busy = any(instance.scheduler.busy for instance in self.instances)
        return not (self.sequences or busy or self.chores.left) and self.migrator.idle

    def handle(self, event: Event) -> list[Action]:
        """Take one event; returns the actions, in order. Raises TypeError for a foreign event."""
        handler = self._handlers.get(type(event))
        if handler is None:
            raise TypeError(f"the Core does not take a {type(event).__name__}")
        self._actions = []
        if self.chores.left:
            self.chores.go_on(event.now)
        if event.now >= self.dispatch.asleep.due_s:
            self.dispatch.look(event.now)
        handler(event)
        if event.now >= self.watcher.due_s:
            self.watcher.look(event.now)
        if self.mixed_pool.on:
            self.mixed_pool.look(self.touched, self.watcher.kept, event.now)
        self._plan(event.now)
        if len(self.instances) > 1:
            self.dispatch.forget(self.touched)
            self.touched = self._balancer.balance(self.touched, event.now)
            if self.touched:
                self._plan(event.now)
        if self.draining and not (self.sequences or self.emptied):
            self.emptied = True
            self._actions.append(Emptied())
        return self._actions

    def may_take_steps(self, index: int) -> bool:
        """Whether an instance's newest plan was a steady decode, and nothing goes on between it and
        others that each of its events may change.
        """
        instance = self.instances[index]
        if not instance.scheduler.decodes_steadily or self._wakes.any_asked:
            return False
        if self.chores.left or instance.drained:
            return False
        if len(self.instances) == 1:
            return True
        if self.touched or self.held_back or self.watcher.on or self.mixed_pool.on:
            return False
        if instance.scheduler.waiting.num or instance.pace.any_paused:
            return False
        prefills = any(home.role is Role.PREFILL for home in self.instances)
        return self._balancer.is_quiet and self.migrator.idle and not prefills

    def take_steps(
        self,
        index: int,
        now: float,
        until_s: float,
        in_flight: list[Flying],
        reasons: list[UInt8],
        clock: StepClock,
    ) -> tuple[SteadySteps, list[Action]] | None:
        """Take an instance's events at once, of which the first is due now, as long as they are
        steady decodes and before `until_s`, by which no other event may touch it: as `handle` would
        with a `StepDone` and a tick each. None: nothing was done, and the first needs its event.
        `reasons`: those of the answers of the steps in flight. It may only be asked where
        `may_take_steps` says so.

        Returns their outcome, which counts for `Submit`, `Deliver` and `WakeAt` of each, and the
        actions behind the last one.
        """
        instance = self.instances[index]
        until_s = min(until_s, self.dispatch.asleep.due_s, self.watcher.due_s)
        steps = steady_steps(instance, now, until_s, in_flight, reasons, clock)
        if steps is None:
            return None
        self._actions = []
        answered = steps.answered
        self.counters.computed_tokens += sum([step.work.num_decodes for step in answered])
        self.counters.output_tokens += steps.sequences.size * len(answered)
        self.touched.add(index)
        self._plan(AT_ONCE)  # nothing, but asks for the next tick
        if len(self.instances) > 1:
            self.dispatch.forget(self.touched)
            self.touched.clear()
        return steps, self._actions

    def touch(self, index: int) -> Instance:
        """Note that this event changes an instance, so it is asked for a step and balanced."""
        self.touched.add(index)
        return self.instances[index]

    def rest(self) -> None:
        """From now on ask only instances for a step that events touch, or that time alone may give
        one; as a Core does that has become idle.
        """
        self.touched = {
            instance.index for instance in self.instances if not instance.scheduler.rests
        }

    def act(self, action: Action) -> None:
        """Have the driver do something."""
        self._actions.append(action)

    # Workers

    def _on_worker_ready(self, event: WorkerReady) -> None:
        instance = self.touch(event.instance)
        instance.ready(event)
        self.dispatch.asleep.ready(instance, event.now)
        self._rehome(event.now)

    def _on_worker_lost(self, event: WorkerLost) -> None:
        self.counters.worker_deaths += 1
        guilty = self.touch(event.instance).lost(event.now, event.blamed)
        self.migrator.worker_lost(event.instance)
        self.dispatch.asleep.lost(self.instances[event.instance])
        for sequence in guilty:
            self.counters.failed += self._end_all(sequence.request, FinishReason.ERROR, event.now)
        self._rehome(event.now)

    def _on_given_up(self, event: InstanceGivenUp) -> None:
        self.touch(event.instance).state = WorkerState.GIVEN_UP
        if sleeper := self.dispatch.asleep.first():
            self.wake(sleeper, event.now)
        self._rehome(event.now)

    def wake(self, instance: Instance, now: float) -> None:
        """Start the worker of an asleep instance."""
        self.touch(instance.index).state = WorkerState.LOADING
        self.dispatch.asleep.woken(instance, now)
        self._actions.append(Wake(instance.index))

    def _rehome(self, now: float) -> None:
        """Move sequences from instances that cannot run them to instances that can, or may once
        loaded; fail those that no instance ever can.
        """
        decided = (WorkerState.READY, WorkerState.GIVEN_UP)
        if not any(instance.state in decided for instance in self.instances):
            return
        homeless: list[Sequence] = []
        for instance in self.instances:
            most = instance.capacity_tokens if instance.state is WorkerState.READY else -1
            homeless += [waiting for waiting in instance.scheduler.waiting if waiting.limit > most]
        self.chores.add(self._place_homeless, homeless, now)

    def _place_homeless(self, sequence: Sequence, now: float) -> None:
        if sequence.slot >= 0 or sequence.state is State.FINISHED:
            return
        home = self.instances[sequence.instance]
        if not home.can_hold(sequence.limit):
            self.touch(home.index).scheduler.withdraw(sequence)
            self.dispatch.place(sequence, now)

    # Requests

    def _on_arrived(self, event: RequestArrived) -> None:
        refusal = refused(self, event)
        if self.watcher.on:
            self.watcher.arrived(event, refusal)
        if refusal is not None:
            self.counters.rejected += 1
            self._actions.append(refusal)
            asleep = self.dispatch.asleep
            if refusal.kind == "not_ready" and asleep.any and (sleeper := asleep.first()):
                self.wake(sleeper, event.now)  # it fits none that is awake
            return
        if not self.sequences:
            self.finish_rate.resume(event.now)
        self.counters.requests += 1
        self.counters.prompt_tokens += event.num_prompt_tokens
        first = self.num_arrivals
        self.num_arrivals += event.n
        sequences = [accepted(event, index, first + index) for index in range(event.n)]
        leader, followers = sequences[0], sequences[1:]
        for sequence in sequences:
            self.sequences[sequence.id] = sequence
        self._requests[event.request] = sequences
        if followers:
            self.held_back.add(leader, followers)
            for follower in followers:
                follower.story.add(event.now, What.HELD_BACK, 0, leader.id)
        self.dispatch.place(leader, event.now)

    def _on_predicted(self, event: Predicted) -> None:
        for sequence in list(self._requests.get(event.request, ())):
            if sequence.state is State.FINISHED:
                continue
            sequence.predicted_tokens = event.num_tokens
            sequence.high_tokens = event.high_tokens
            sequence.story.add(event.now, What.PREDICTED, event.num_tokens)
            if sequence not in self.held_back:
                self.touch(sequence.instance).scheduler.on_prediction(sequence, event.now)
                self.dispatch.on_predicted(sequence, event.now)

    def unplaceable(self, sequence: Sequence, now: float) -> None:
        """Fail a sequence that no instance can ever hold."""
        sequence.move(State.FINISHED)
        self.instances[0].moving.remote_kvs.drop(sequence)  # wherever it lies
        self._actions.append(Finished(sequence.id, int(FinishReason.ERROR), NO_PLACE))
        self.counters.failed += 1
        self._forget(sequence, FinishReason.ERROR, now)

    def _release_followers(self, leader: Sequence, now: float) -> None:
        """Queue the streams that waited for a leader's prompt, which they may share now."""
        for follower in self.held_back.release(leader):
            home = self.instances[leader.instance]
            if leader.instance >= 0 and home.takes(follower.limit):
                self.touch(home.index).scheduler.add(follower, now)
            else:
                self.dispatch.place(follower, now)

    # Steps

    def _on_step_done(self, event: StepDone) -> None:
        instance = self.touch(event.instance)
        if event.hashes:
            hashes = split_hashes(event.hashes)
            filled = zip(event.filled.tolist(), event.filled_at.tolist(), hashes, strict=True)
            for sequence_id, block, block_hash in filled:
                self._seal(sequence_id, block, [block_hash])
        answer = instance.answered(event)
        if answer is None:
            return
        counters, work, rows, now = self.counters, answer.work, answer.rows, event.now
        if instance.behind_prompts is not None:
            counters.note_pause(Cause.BEHIND_PROMPT, *instance.behind_prompts)
        counters.computed_tokens += work.num_tokens
        if answer.drafts[0]:
            counters.note_drafts(*answer.drafts)
        if rows.size:
            counters.output_tokens += rows.size
            sequences, reasons = answer.sequences, answer.reasons
            self._actions.append(Deliver(event.instance, event.step, rows, sequences, reasons))
        if self.watcher.on and (work.num_decodes or work.chunks):
            self.watcher.stepped(instance, work, event.elapsed_s)
        if answer.joined:
            self._note_joined(answer.joined, now)
        if answer.ended:
            self._note_ended(answer, instance, now)
        if len(self.instances) > 1:
            self.migrator.after_step(instance, now)

    def _note_ended(self, answer: Answer, instance: Instance, now: float) -> None:
        """Count and forget the sequences that ended with a step."""
        ended, counters = answer.ended, self.counters
        for sequence, cause in zip(ended, answer.causes, strict=True):
            if cause != FinishReason.ERROR:
                note_answer(counters, instance, sequence, now)
            self._forget(sequence, cause, now)
        num_failed = answer.num_failed
        counters.output_tokens -= num_failed
        counters.failed += num_failed
        if num_finished := len(ended) - num_failed:
            counters.finished += num_finished
            self.finish_rate.observe(now, num_finished)
        self.dispatch.on_ended(instance.index, ended, now)

    def _note_joined(self, joined: list[Sequence], now: float) -> None:
        """Note the first tokens and the ends of pauses of a step."""
        for sequence in joined:
            if sequence.first_token_s < 0.0:
                sequence.first_token_s = now
                self.instances[sequence.instance].scheduler.on_first_token(sequence)
                self.counters.note_first(now - sequence.arrived_s)
                sequence.story.add(now, What.FIRST)
                if self.held_back.by_leader:
                    self._release_followers(sequence, now)
            elif sequence.paused_since_s >= 0.0:
                length_s = sequence.end_pause(now)
                self.counters.note_pause(sequence.pause_cause, length_s)
                sequence.story.add(now, What.RESUMED, round(1e3 * length_s), sequence.pause_cause)

    def _on_copied(self, event: CopiesDone) -> None:
        counts = event.num_out, event.out_s, event.num_in, event.in_s
        instance = self.touch(event.instance)
        instance.scheduler.on_copied(event.step, event.now, *counts)
        if len(self.instances) > 1:
            self.migrator.after_copies(instance, event.now)

    def _on_chosen(self, event: PolicyChosen | BudgetChosen) -> None:
        for instance in self.instances:
            if event.instance in (-1, instance.index):
                self.touch(instance.index).choose(event)

    def _on_placement_chosen(self, event: PlacementChosen) -> None:
        self.config = event.changed(self.config)
        self.dispatch.use(event.placement)

    def _plan(self, now: float) -> None:
        """Submit every step that can be planned now; ask for a tick when one is due later."""
        wakes, instances = self._wakes, self.instances
        for index in self.touched:
            wakes.set(index, instances[index].due_s)
        for index in wakes.take(now):
            self.touched.add(index)
            instance = instances[index]
            while instance.due_s <= now and self._submit(instance, now):
                pass
            if instance.due_s > now:
                wakes.set(index, instance.due_s)
            elif not instance.scheduler.rests:
                wakes.ask_again(index)
        wake_at_s = now if self.chores.left else wakes.next_s
        if wake_at_s != self.wake_at_s and wake_at_s != NEVER:
            self._actions.append(WakeAt(wake_at_s))
        self.wake_at_s = wake_at_s

    def _submit(self, instance: Instance, now: float) -> bool:
        scheduler, many = instance.scheduler, len(self.instances) > 1
        slo = self.watcher.slo(instance) if many else None
        batch = scheduler.schedule(now, slo)
        remote_kvs = instance.moving.remote_kvs
        while remote_kvs.fetches:
            if self.migrator.after_plan(instance, now) and batch is None:
                batch = scheduler.schedule(now, slo)  # no answer will come to ask it again
        if scheduler.stats.any:
            self.counters.note_preemptions(scheduler.take_stats())
        if batch is None:
            return False
        if scheduler.started:
            for sequence, num_cached in scheduler.take_started():
                self.counters.cached_tokens += num_cached
                self._actions.append(Started(sequence.id, instance.index, num_cached))
        if many and self.migrator.hands_off(instance):
            self.migrator.before_step(instance, batch, now)
        flown = instance.submitted(batch, now)
        self._actions.append(Submit(batch, flown.work, flown.sequences))
        if many and self.migrator.flips.any_open:
            self.migrator.flips.submitted(instance, flown.work, now)
        return True

    # Endings

    def _on_sealed(self, event: Sealed) -> None:
        self._seal(event.sequence, event.first_block, split_hashes(event.hashes))

    def _seal(self, sequence_id: int, first_block: int, hashes: list[bytes]) -> None:
        """Note the hashes of blocks that a sequence's answer has filled, for the prefix cache."""
        sequence = self.sequences.get(sequence_id)
        if sequence is None or len(sequence.hashes) != first_block:
            return
        sequence.hashes.extend(hashes)
        if sequence.state is State.RUNNING:
            self.touch(sequence.instance).scheduler.seal(sequence)

    def _on_finish(self, event: Finish) -> None:
        sequence = self.sequences.get(event.sequence)
        if sequence is not None:
            self._end(sequence, FinishReason.STOP, event.now)
            note_answer(self.counters, self.instances[sequence.instance], sequence, event.now)
            self.counters.finished += 1
            self.finish_rate.observe(event.now, 1)

    def _on_abort(self, event: Abort) -> None:
        self.counters.aborted += self._end_all(event.request, FinishReason.ABORT, event.now)

    def _end_all(self, request: int, reason: FinishReason, now: float) -> int:
        """End every stream of a request between steps; returns their number."""
        streams = self._requests.get(request, [])[::-1]
        for sequence in streams:
            self._end(sequence, reason, now)
        return len(streams)

    def _end(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """End a sequence between steps."""
        if sequence in self.held_back:
            self.held_back.remove(sequence)
            sequence.move(State.FINISHED)
        else:
            self.touch(sequence.instance).scheduler.remove(sequence)
        error = DEADLY if reason == FinishReason.ERROR else ""
        self._actions.append(Finished(sequence.id, int(reason), error))
        self._forget(sequence, reason, now)
        self.dispatch.on_ended(sequence.instance, [sequence], now)

    def _forget(self, sequence: Sequence, reason: int, now: float) -> None:
        """Drop an ended sequence, and its request with the last of its streams."""
        if len(self.instances) > 1:
            self.migrator.ended(sequence, reason == FinishReason.ERROR)
            if self.watcher.on:
                self.watcher.ended(sequence, reason, now)
        if self.held_back.by_leader:
            self._release_followers(sequence, now)
        if sequence.paused_since_s >= 0.0:
            self.counters.note_pause(sequence.pause_cause, sequence.end_pause(now))
        sequence.story.add(now, What.FINISHED, sequence.num_output_tokens, reason)
        sequence.leader, sequence.hashes = None, []
        self.ended.append(sequence)
        del self.sequences[sequence.id]
        request = sequence.request
        siblings = self._requests[request]
        siblings.remove(sequence)
        if not siblings:
            del self._requests[request]

    def _on_drain(self, event: DrainBegun) -> None:
        self.draining = True

    def _on_resumed(self, event: Resumed) -> None:
        self.draining = self.emptied = False

    def _on_reconfigured(self, event: Reconfigured) -> None:
        self.config = event.changed(self.config)
        self.migrator.reconfigure(self.config)
        for instance in self.instances:
            self.touch(instance.index).reconfigure(self.config)
        self.mixed_pool.reconfigure(event.now)

    def _on_tick(self, event: Tick) -> None:
        """Do nothing: planning follows every event, and a tick is one."""
        self.wake_at_s = NEVER
