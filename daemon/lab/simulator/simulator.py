"""The event loop of a simulation: the same Core, virtual seconds, simulated workers."""

import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from daemon.core.core import Core
from daemon.core.instance.instance import Instance, WorkerState
from daemon.core.instance.steady_steps import Flying, SteadySteps
from daemon.core.placing.dispatch import Decide
from daemon.core.values.actions import (
    Action,
    CancelSend,
    Deliver,
    Emptied,
    Finished,
    FlipShown,
    Noted,
    Rejected,
    RoleGiven,
    Send,
    Started,
    Submit,
    Wake,
    WakeAt,
)
from daemon.core.values.events import (
    Configured,
    CopiesDone,
    Event,
    Predicted,
    RequestArrived,
    StepDone,
    Tick,
    WorkerLost,
    WorkerReady,
)
from daemon.core.view.checkpoint import Checkpoint, restore
from daemon.cost.work import StepWork
from daemon.journal.writer import JournalWriter
from daemon.lab.report.records import Outcome, RunLog
from daemon.lab.simulator.agenda import Agenda, Rank
from daemon.lab.simulator.answer_blocks import AnswerBlocks
from daemon.lab.simulator.drafts import Drafts, Lookup
from daemon.lab.simulator.links import SimulatedLink
from daemon.lab.simulator.operators import Operator
from daemon.lab.simulator.pool import Pool
from daemon.lab.simulator.recorded_transfers import RecordedLinks, RecordedTransfers
from daemon.lab.simulator.recorder import Recorder, note_alone
from daemon.lab.simulator.routes import Routes
from daemon.lab.simulator.scenario import WorkerFault
from daemon.lab.simulator.traffic import Traffic
from daemon.lab.simulator.transfers import NoLinkError, SimulatedTransfers
from daemon.lab.simulator.worker import Computed, Worker
from daemon.length_models.prediction import Predictor
from daemon.state.request import FinishReason, request_of
from daemon.state.role import Role
from daemon.state.sequence import Sequence

PROGRESS_EVENTS = 2048
Progress = Callable[[int, int], None]
"""Receives (ended answers, all answers) now and then."""


class TimedDecisions:
    """The duration of each placement decision."""

    def __init__(self) -> None:
        self.taken_s = array("d")

    def around(self, decide: Decide) -> Decide:
        """`decide`, timed."""

        def timed(
            sequence: Sequence, among: Listing[Instance], wanted: Role, now: float
        ) -> Instance:
            began_s = time.perf_counter()
            chosen = decide(sequence, among, wanted, now)
            self.taken_s.append(time.perf_counter() - began_s)
            return chosen

        return timed


_Flown = tuple[StepDone, StepWork, Computed]

MOST_FAILED = 8
"""After so many vain attempts in turn to take many steps, one in so many is made."""
PLANS_AHEAD = 1024
"""The most plans that an instance is looked at for, while another goes ahead of it."""


class SimulationError(RuntimeError):
    """The run stopped with sequences left that no event would move, or without a
    written journal.
    """


@dataclass(slots=True)
class Machine:
    """The hardware of the Core's instances."""

    workers: Listing[Worker]
    pools: Listing[Pool]
    ready_s: Listing[float]  # when each worker is first ready; inf: never
    reload_s: Listing[float] = ()  # to load each one's weights over the shared host link
    wake_s: Listing[float] = ()  # to wake each one that is asleep; (): as configured
    delivery_s: float = 0.0  # from a step's answer to the client's token
    routes: Routes | None = None  # between instances; None: there are none
    recorded: RecordedLinks | None = None  # a journal's, in the place of routes
    forward_tokens: Listing[int] = ()  # the target forward size of each; (): unknown


@dataclass(slots=True)
class Extras:
    """The optional parts of a run."""

    predictor: Predictor | None = None
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    journal: JournalWriter | None = None
    faults: tuple[WorkerFault, ...] = ()
    inputs: Listing[Event] = ()  # further events for the Core, each at its time
    operator: Operator | None = None
    state: Checkpoint | None = None  # the Core's initial state, with ready workers; None: new
    progress: Progress | None = None
    after_event: Callable[[Core], None] | None = None  # for checks of every ledger
    drafts: Drafts | None = None  # None: nobody looks for any
    hashes: Mapping[tuple[int, int], bytes] = field(default_factory=dict)
    """Hashes of blocks that answers fill, by sequence and index in it."""
    ticks: Mapping[float, float] = field(default_factory=dict)
    """When ticks come that are asked for at these times; others come in time."""

    @property
    def want_each_event(self) -> bool:
        """Whether anything depends on single events of steps."""
        looked_at = self.journal is not None or self.after_event is not None
        return looked_at or self.drafts is not None or bool(self.hashes or self.ticks)


class Simulator:
    """Drives one Core over one workload until no events are left."""

    def __init__(
        self,
        config: Configured,
        traffic: Traffic,
        machine: Machine,
        recorder: Recorder,
        extras: Extras | None = None,
    ) -> None:
        self._decisions = TimedDecisions()
        self.core = Core(config, self._decisions.around)
        self._extras = extras or Extras()
        if self._extras.state is not None:
            restore(self.core, self._extras.state)
        self._agenda = Agenda()
        self._traffic = traffic
        self._machine = machine
        self._recorder = recorder
        self._journal = self._extras.journal
        self._num_ended = 0
        self._many = not (self._extras.want_each_event or recorder.wants_each_step)
        self._guesses: dict[int, float] = {}  # of the predictor, by request
        self._lookup = Lookup(self._extras.drafts) if self._extras.drafts is not None else None
        self._blocks: AnswerBlocks | None = None
        if self._extras.hashes:
            self._blocks = AnswerBlocks(self._extras.hashes, config.block_size)
        self._lives = [0] * len(machine.workers)  # events of an earlier life are dropped
        self._wake_s = float("inf")
        # Steps in flight by instance, as in the agenda: (StepDone, its work, its times).
        self._flying = [deque[_Flown]() for _ in machine.workers]
        self._failed = [0] * len(machine.workers)  # attempts in turn to take many steps
        self._host = SimulatedLink("host link", "weights", "instance", recorder.spans)
        self._transfers = self._transfers_of(machine, config.block_size)
        self._handlers: dict[int, Callable[[float, Any], Event | None]] = {
            Rank.READY: self._ready,
            Rank.COPIED: self._copied,
            Rank.ANSWER: self._answer,
            Rank.LOSS: self._loss,
            Rank.RELOAD: self._reload,
            Rank.FLOWED: self._flowed,
            Rank.SEND: self._due,
            Rank.TRANSFERRED: self._transferred,
            Rank.LINK: self._linked,
            Rank.ARRIVAL: self._arrival,
            Rank.PREDICTION: self._prediction,
            Rank.INPUT: lambda _now, event: event,
            Rank.OPERATOR: self._operate,
            Rank.WAKE: self._wake,
        }
        self._carry_out: dict[type, Callable[[float, Any], None]] = {
            Submit: self._submit,
            Send: self._send,
            CancelSend: self._cancel,
            Deliver: self._deliver,
            Started: self._started,
            Finished: self._finished,
            Rejected: self._rejected,
            WakeAt: self._wake_at,
            Wake: self._wake_instance,
            **dict.fromkeys((RoleGiven, FlipShown, Noted, Emptied), lambda _now, _action: None),
        }

    def _transfers_of(
        self, machine: Machine, block_size: int
    ) -> SimulatedTransfers | RecordedTransfers | None:
        recorder, agenda = self._recorder, self._agenda
        if len(machine.pools) > 1 and machine.recorded is not None:
            recorded = machine.recorded, machine.pools, block_size
            return RecordedTransfers(*recorded, agenda, recorder.instances)
        if machine.routes is not None and len(machine.routes) > 1:
            return SimulatedTransfers(machine.routes, agenda, recorder.instances, recorder.spans)
        return None

    def run(self) -> RunLog:
        """Run from the first arrival to the last event. Raises SimulationError if it gets stuck."""
        began_s = time.perf_counter()
        for instance, ready_s in enumerate(self._machine.ready_s):
            is_ready = self.core.instances[instance].state is WorkerState.READY
            is_asleep = self.core.instances[instance].state is WorkerState.ASLEEP
            if ready_s < float("inf") and not is_ready and not is_asleep:
                self._agenda.add(ready_s, Rank.READY, (instance, 0))
        for fault in self._extras.faults:
            self._agenda.add(fault.at_s, Rank.LOSS, fault)
        for event in self._extras.inputs:
            self._agenda.add(event.now, Rank.INPUT, event)
        if (operator := self._extras.operator) is not None:
            self._agenda.add(operator.due_s, Rank.OPERATOR, operator)
        if len(self._traffic):
            self._agenda.add(self._traffic.core_s(0), Rank.ARRIVAL, 0)
        last_s = self._loop()
        if self._journal is not None:
            self._journal.close(last_s)
            _check_written(self._journal)
        if self.core.sequences:
            left = len(self.core.sequences)
            raise SimulationError(f"{left} sequences are left at {last_s:.3f} s, and nothing moves")
        return self._log(last_s - self._traffic.first_s, time.perf_counter() - began_s)

    def _loop(self) -> float:
        """Handle all events in order; return the time of the last step's end or last arrival."""
        agenda, handlers, extras = self._agenda, self._handlers, self._extras
        last_s, count = self._traffic.first_s, 0
        while agenda:
            now, rank, what = agenda.pop()
            event = handlers[rank](now, what)
            if event is None:
                continue
            self._act(now, event)
            if isinstance(event, StepDone):
                last_s = now
                _, _, work, done = what
                self._recorder.answered(self.core.instances[event.instance], work, done)
            elif isinstance(event, RequestArrived):
                last_s = now
            elif isinstance(event, WorkerLost):
                self._recorder.stopped(self.core.instances[event.instance], now)
            if extras.after_event is not None:
                extras.after_event(self.core)
            count += 1
            if extras.progress is not None and count % PROGRESS_EVENTS == 0:
                extras.progress(self._num_ended, len(self._traffic.answers))
        return last_s

    def _act(self, now: float, event: Event) -> None:
        """Journal an event, let the Core handle it, and carry out its actions in order."""
        if self._journal is not None:
            self._journal.append(event)
            _check_written(self._journal)
        actions: list[Action] = self.core.handle(event)
        for action in actions:
            self._carry_out[type(action)](now, action)
        if self._blocks is not None and isinstance(event, StepDone):
            self._blocks.hash(self.core.sequences)

    def _log(self, virtual_s: float, wall_s: float) -> RunLog:
        recorder = self._recorder
        for log, worker in zip(recorder.instances, self._machine.workers, strict=True):
            log.energy_j = worker.energy_j(virtual_s) or 0.0
            log.capped_s = worker.capped_s
        for log, instance in zip(recorder.instances, self.core.instances, strict=True):
            log.uploaded_ahead_blocks = instance.scheduler.swap_stats().num_ahead
        note_alone(recorder.log, self._machine.workers)
        counters = self.core.counters
        return RunLog(
            recorder.finish(),
            recorder.instances,
            recorder.spans or [],
            virtual_s,
            wall_s,
            counters.handoffs,
            counters.handoffs_failed,
            np.array(self._decisions.taken_s),
            counters.flips,
        )

    # Events

    def _ready(self, now: float, what: tuple[int, int]) -> Event | None:
        instance, life = what
        if life != self._lives[instance]:
            return None
        pool = self._machine.pools[instance]
        if self._transfers is not None:
            self._transfers.ready(now, instance)
        return WorkerReady(
            now=now,
            instance=instance,
            num_blocks=pool.num_blocks,
            block_bytes=pool.block_bytes,
            step_s=self._machine.workers[instance].warm_step_s(),
            num_host_blocks=pool.num_host_blocks,
            copy_block_s=pool.copy_block_s,
            token_s=self._machine.workers[instance].warm_token_s(),
            forward_tokens=self._machine.forward_tokens[instance]
            if self._machine.forward_tokens
            else 0,
            most_times=self._machine.workers[instance].most_times,
            row_s=self._machine.workers[instance].row_s,
            same_until=self._machine.workers[instance].same_until,
            windows=pool.windows,
            kinds=pool.kinds,
            state_pages=pool.state_pages,
        )

    def _answer(self, now: float, what: tuple[int, StepDone, StepWork, Computed]) -> Event | None:
        life, event, _, _ = what
        flying = self._flying[event.instance]
        if life != self._lives[event.instance] or flying[0][0] is not event:
            return None  # its worker died, or it was taken with others
        if self._many and self._take_steps(now, event.instance):
            return None
        flying.popleft()
        if self._lookup is not None:
            looks = self.core.instances[event.instance].may_draft
            offers = self._lookup.offers(event.instance, event.step, looks)
            event = msgspec.structs.replace(event, offers=offers)
        if self._blocks is not None:
            sequences, at, hashes = self._blocks.newest
            filled = {"filled": sequences, "filled_at": at, "hashes": hashes}
            event = msgspec.structs.replace(event, **filled)
        return event

    def _copied(self, now: float, what: tuple[int, CopiesDone]) -> Event | None:
        life, event = what
        return event if life == self._lives[event.instance] else None

    def _operate(self, now: float, operator: Operator) -> None:
        """Have the operator look, unless all is over."""
        if self._num_ended < len(self._traffic.answers):
            for event in operator.look(now, self._recorder.until_now()):
                self._agenda.add(now, Rank.INPUT, event)
            self._agenda.add(max(now, operator.due_s), Rank.OPERATOR, operator)

    def _loss(self, now: float, fault: WorkerFault) -> Event | None:
        instance = fault.instance
        if self.core.instances[instance].state is WorkerState.ASLEEP:
            return None  # there is none to lose
        self._lives[instance] += 1
        self._flying[instance].clear()
        self._machine.workers[instance].clear(now)
        if self._transfers is not None:
            self._transfers.lost(now, instance)
        if (restarted_s := now + fault.restart_s) < float("inf"):
            self._agenda.add(restarted_s, Rank.RELOAD, (instance, self._lives[instance]))
        return WorkerLost(now, instance, fault.blamed)

    def _reload(self, now: float, what: tuple[int, int]) -> None:
        """Load a new process's weights, unless it is dead too by now."""
        instance, life = what
        if life == self._lives[instance]:
            loaded_s = self._host.hold(now, self._machine.reload_s[instance], instance)
            self._agenda.add(loaded_s, Rank.READY, what)

    def _flowed(self, now: float, expected_s: float) -> None:
        if self._transfers is not None:
            self._transfers.flowed(now, expected_s)

    def _due(self, now: float, transfer: int) -> None:
        if self._transfers is not None:
            self._transfers.due(now, transfer)

    def _transferred(self, now: float, what: Any) -> Event | None:
        return self._transfers.over(now, what) if self._transfers is not None else None

    def _linked(self, now: float, what: Any) -> Event | None:
        return self._transfers.changed(now, what) if self._transfers is not None else None

    def _arrival(self, now: float, request: int) -> Event:
        following = request + 1
        if following < len(self._traffic):
            self._agenda.add(self._traffic.core_s(following), Rank.ARRIVAL, following)
        if self._extras.predictor is not None:
            self._agenda.add(now, Rank.PREDICTION, request)
        return self._traffic.event(request)

    def _prediction(self, now: float, request: int) -> Event | None:
        predictor = self._extras.predictor
        if predictor is None:
            return None
        chance = float(self._extras.chance.standard_normal())
        said = predictor.predict(self._traffic.asked(request, chance))
        self._guesses[request] = said.guess
        return Predicted(now, request, said.middle, said.high)

    def _wake(self, now: float, wake_s: float) -> Event | None:
        if wake_s != self._wake_s:
            return None
        self._wake_s = float("inf")
        if self._many:
            due = [home.index for home in self.core.instances if home.due_s <= now]
            taken = [self._take_steps(now, index) for index in due if self._flying[index]]
            if taken and all(taken):
                return None
        return Tick(now)

    # Many steps at once

    def _take_steps(self, now: float, index: int) -> bool:
        """Have the Core take an instance's next steps without an event for each, as far as nothing
        else may happen to it; whether there were any.
        """
        flying, core = self._flying[index], self.core
        if not flying or not core.may_take_steps(index):
            return False
        clock, failed = self._machine.workers[index].clock, self._failed[index]
        if clock is None or any(work.chunks for _, work, _ in flying):
            return False
        self._failed[index] += 1
        if failed > MOST_FAILED and failed % MOST_FAILED:
            return False
        until_s = self._undisturbed_s(now, index)
        if until_s <= now or (self._transfers is not None and self._transfers.layers_s(index)):
            return False
        in_flight = [
            Flying(done.start_s, done.end_s, done.busy_s, work) for _, work, done in flying
        ]
        reasons = [event.reasons for event, _, _ in flying]
        taken = core.take_steps(index, now, until_s, in_flight, reasons, clock)
        if taken is None:
            return False
        steps, actions = taken
        self._failed[index] = 0
        instance = core.instances[index]
        self._recorder.took(instance, steps, self._machine.delivery_s)
        self._fly(instance, steps)
        for action in actions:
            self._carry_out[type(action)](now, action)
        return True

    def _fly(self, instance: Instance, steps: SteadySteps) -> None:
        """Put the steps that were planned, and have not answered, into the agenda."""
        flying, index = self._flying[instance.index], instance.index
        for _ in range(min(len(steps.answered), len(flying))):
            flying.popleft()
        flown = instance.scheduler.in_flight.steps
        reasons = np.zeros(steps.sequences.size, np.uint8)
        for number in range(len(flying), len(flown)):
            step, times = flown[number], steps.flying[number]
            elapsed_s = times.end_s - times.start_s
            answer = StepDone(times.end_s, index, step.step, reasons, elapsed_s)
            done = Computed(times.start_s, times.end_s, times.busy_s, reasons, None)
            flying.append((answer, step.work, done))
            self._agenda.add(
                times.end_s, Rank.ANSWER, (self._lives[index], answer, step.work, done)
            )

    def _undisturbed_s(self, now: float, index: int) -> float:
        """The time before which nothing but its own steps touches an instance: no other event
        comes, and no other instance has somebody wait, who might move here.
        """
        until_s = self._agenda.other_s
        for other in self.core.instances:
            if other.index == index or other.calm_plans > PLANS_AHEAD:
                continue
            sure_plans = other.calm_plans - 2 - other.depth
            sure_s = now + max(0.0, sure_plans) * self._machine.workers[other.index].least_s(
                PLANS_AHEAD
            )
            if sure_s < until_s:
                flying = self._flying[other.index]
                next_s = min(other.due_s, flying[0][0].now if flying else float("inf"))
                until_s = min(until_s, max(sure_s, next_s))
        return until_s

    # Actions

    def _submit(self, now: float, action: Submit) -> None:
        batch, work = action.batch, action.work
        instance = batch.instance
        worker = self._machine.workers[instance]
        life = self._lives[instance]
        if self._transfers is None:
            done = worker.compute(now, batch, work)
        else:
            done = worker.compute(now, batch, work, self._transfers.layers_s(instance))
            self._transfers.planned(now, instance, done.start_s, done.end_s)
        if self._lookup is not None:
            self._lookup.sent(action, done.counts)
        elapsed_s = done.end_s - done.start_s
        answer = StepDone(
            now=done.end_s,
            instance=instance,
            step=batch.step,
            reasons=done.reasons,
            elapsed_s=elapsed_s,
            counts=done.counts,
        )
        self._flying[instance].append((answer, work, done))
        self._agenda.add(done.end_s, Rank.ANSWER, (life, answer, work, done))
        if done.copies is not None:
            copies = done.copies
            copied = CopiesDone(
                now=copies.end_s,
                instance=instance,
                step=batch.step,
                num_out=copies.num_out,
                out_s=copies.out_s,
                num_in=copies.num_in,
                in_s=copies.in_s,
            )
            self._agenda.add(copies.end_s, Rank.COPIED, (life, copied))
        if work.num_tokens:
            self._recorder.planned(self.core.instances[instance], now)

    def _send(self, now: float, action: Send) -> None:
        if self._transfers is None:
            raise SimulationError(f"transfer {action.transfer}: there are no links")
        worker = self._machine.workers[action.source]
        if action.from_host:
            ready_s = worker.copied_s(action.blocks)
        else:
            ready_s = now if action.at_once else worker.computed_s
        try:
            self._transfers.send(now, action, ready_s)
        except NoLinkError as error:
            raise SimulationError(str(error)) from None

    def _cancel(self, now: float, action: CancelSend) -> None:
        if self._transfers is not None:
            self._transfers.cancel(now, action.transfer)

    def _deliver(self, now: float, action: Deliver) -> None:
        self._recorder.delivered(now + self._machine.delivery_s, action.sequences)
        if self._blocks is not None:
            self._blocks.delivered(action.sequences.tolist())
        ended = np.count_nonzero(action.reasons)
        if ended:
            self._num_ended += int(ended)
            self._learn(action.sequences[action.reasons != 0].tolist())

    def _learn(self, sequences: list[int]) -> None:
        predictor = self._extras.predictor
        if predictor is None:
            return
        for sequence in sequences:
            request = request_of(sequence)
            asked = self._traffic.asked(request, guess=self._guesses.get(request, 0.0))
            predictor.observe(asked, self._traffic.answers[self._traffic.row(sequence)])

    def _started(self, now: float, action: Started) -> None:
        row, sequence = self._traffic.row(action.sequence), self.core.sequences[action.sequence]
        if self._blocks is not None:
            self._blocks.started(action.sequence, sequence.num_prompt_tokens)
        self._recorder.started(now, row, sequence, action.instance)

    def _finished(self, now: float, action: Finished) -> None:
        if action.reason == FinishReason.ERROR:
            self._num_ended += 1
            self._recorder.ended(self._traffic.row(action.sequence), Outcome.FAILED)

    def _rejected(self, now: float, action: Rejected) -> None:
        for row in self._traffic.rows(action.request):
            self._num_ended += 1
            self._recorder.ended(row, Outcome.REJECTED)

    def _wake_instance(self, now: float, action: Wake) -> None:
        """Start a worker."""
        instance, wake_s = action.instance, self._machine.wake_s
        took_s = wake_s[instance] if wake_s else self.core.instances[instance].config.wakes_in_s
        self._agenda.add(now + took_s, Rank.READY, (instance, self._lives[instance]))

    def _wake_at(self, now: float, action: WakeAt) -> None:
        self._wake_s = action.time_s
        at_s = max(now, action.time_s, self._extras.ticks.get(action.time_s, now))
        self._agenda.add(at_s, Rank.WAKE, action.time_s)


def _check_written(journal: JournalWriter) -> None:
    if journal.error:
        raise SimulationError(f"the journal cannot be written: {journal.error}")
