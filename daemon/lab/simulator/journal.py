"""A daemon's journal as an incident: its Core is replayed, and its actions are recorded.

The journal has no text and no true answer lengths; an answer's length is the number of its
delivered tokens. An answer that its client cut short ends at the same token here.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from daemon.core.core import Core
from daemon.core.instance.instance import Instance, WorkerState
from daemon.core.values.actions import (
    Action,
    Deliver,
    Finished,
    Rejected,
    Send,
    Started,
    Submit,
    Wake,
    WakeAt,
)
from daemon.core.values.events import (
    BudgetChosen,
    Configured,
    CopiesDone,
    DrainBegun,
    Event,
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
    StepDone,
    Tick,
    TransferEnded,
    WorkerLost,
    WorkerReady,
)
from daemon.core.values.limits import limits_of
from daemon.core.view.checkpoint import Checkpoint, checkpoint, restore
from daemon.core.wakes import NEVER
from daemon.cost.work import StepWork, within_windows
from daemon.journal.reader import JournalError, read_records
from daemon.journal.records import Gap, Note, Record
from daemon.lab.report.records import InstanceLog, Outcome, RequestLog
from daemon.lab.simulator.drafts import RecordedDrafts
from daemon.lab.simulator.pool import Pool
from daemon.lab.simulator.recorded_transfers import JournalTransfer, RecordedLinks
from daemon.lab.simulator.recorder import Recorder
from daemon.lab.simulator.worker import Computed
from daemon.memory.hashing import split_hashes
from daemon.placement import NAMES
from daemon.scheduler.policies import POLICIES
from daemon.state.request import FinishReason, sequence_id
from daemon.state.sequence import Sequence

Happened = tuple[Event, list[Action]]
"""An event, and the Core's actions after it."""


INPUTS = (
    Predicted
    | PolicyChosen
    | PlacementChosen
    | DrainBegun
    | Resumed
    | Reconfigured
    | FlipOrdered
    | RolesChosen
    | InstanceDrained
    | InstanceResumed
    | InstanceGivenUp
    | MigrationOrdered
    | BudgetChosen
)
"""Events from outside other than requests and workers' messages: a rerun has them as they came."""


def replay(
    records: Iterable[Record], begun: Callable[[Core], None] = lambda _core: None
) -> Iterator[tuple[Event, list[Action]]]:
    """Yield each event with the Core's actions, exactly as they were then.

    Events between a gap and the next checkpoint are left out: their effect is unknown. `begun`
    receives each new Core before its events.
    """
    config: Configured | None = None
    core: Core | None = None
    for record in records:
        if isinstance(record, Configured):
            config = record
            core = Core(record)
            begun(core)
        elif isinstance(record, Gap):
            core = None
        elif isinstance(record, Checkpoint):
            if config is None:
                raise ValueError("a checkpoint without a configuration before it")
            core = Core(config)
            restore(core, record)
            begun(core)
        elif core is not None and not isinstance(record, Note):
            yield record, core.handle(record)


@dataclass(slots=True)
class JournalStream:
    """One token stream of the journal."""

    arrival: RequestArrived
    started_s: float = float("nan")
    instance: int = -1
    token_s: list[float] = field(default_factory=list)
    outcome: Outcome = Outcome.UNFINISHED
    sequence: Sequence | None = None  # the Core's own, once it started


@dataclass(slots=True, frozen=True, eq=False)
class JournalStep:
    """One answered step."""

    instance: int
    number: int  # the plan's
    work: StepWork  # its decodes' contexts as in the mean of its groups of layers
    start_s: float  # when it was sent, or the previous step answered, whichever came later
    end_s: float
    elapsed_s: float  # as the worker measured it
    is_behind: bool  # whether it was sent before the previous step was answered
    awaits: bool  # whether it may have waited for swap copies


@dataclass(slots=True, frozen=True)
class Swap:
    """The swap copies of one plan."""

    number: int  # the plan's
    sent_s: float
    copied: CopiesDone


@dataclass(slots=True)
class JournalInstance:
    """An instance as its ready worker reported it, or as a checkpoint has it."""

    ready_s: float = float("inf")
    pool: Pool = field(default_factory=lambda: Pool(0, 0))
    warm_step_s: float = 0.0
    warm_token_s: float = 0.0
    forward_tokens: int = 0
    most_times: int = 1
    row_s: float = 0.0
    same_until: tuple[int, ...] = ()
    wake_s: float = 0.0  # how long it took to wake; 0: it was awake from the beginning


@dataclass(slots=True)
class Death:
    """A worker's death."""

    lost: WorkerLost
    ready_s: float = float("inf")  # when the next worker of its instance was ready; inf: none was


@dataclass(slots=True)
class Incident:
    """The content of a journal file, replayed through a Core."""

    source: str
    config: Configured  # with the policy in force where the journal begins
    state: Checkpoint | None = None  # the Core's at the beginning; None: no worker was ready
    # By sequence, in order of arrival.
    streams: dict[int, JournalStream] = field(default_factory=dict)
    steps: list[JournalStep] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    # By instance; only those that were ready.
    homes: dict[int, JournalInstance] = field(default_factory=dict)
    inputs: list[Event] = field(default_factory=list)  # predictions and operators' orders
    deaths: list[Death] = field(default_factory=list)
    # Plans whose answer or copies a death kept from coming, by instance and step: when it was.
    lost_s: dict[tuple[int, int], float] = field(default_factory=dict)
    instances: list[InstanceLog] = field(default_factory=list)  # times as the journal's
    handoffs: int = 0
    handoffs_failed: int = 0
    num_missing: int = 0  # events that the journal could not take
    drafts: RecordedDrafts = field(default_factory=RecordedDrafts)
    # Of blocks that answers filled, by sequence and index in it.
    hashes: dict[tuple[int, int], bytes] = field(default_factory=dict)
    links: RecordedLinks = field(default_factory=RecordedLinks)
    # When a tick came, or other events did in its place, by the time for which it was asked.
    ticks: dict[float, float] = field(default_factory=dict)

    @property
    def policy(self) -> str:
        """The policies of the instances at the beginning, each once."""
        return ", ".join(dict.fromkeys(instance.policy for instance in self.config.instances))

    @property
    def predicted(self) -> bool:
        """Whether lengths were predicted."""
        return any(isinstance(event, Predicted) for event in self.inputs)

    @property
    def first_s(self) -> float:
        """The time of the first request."""
        return next(iter(self.streams.values())).arrival.now

    def lengths(self) -> list[int]:
        """Output tokens of each stream: those delivered.

        A rejected stream's length is unknown: it counts as long as the mean of the finished ones,
        up to its limit.
        """
        finished = [
            len(stream.token_s)
            for stream in self.streams.values()
            if stream.outcome is Outcome.FINISHED
        ]
        mean = max(1, round(sum(finished) / max(1, len(finished))))
        return [
            min(mean, stream.arrival.max_tokens)
            if stream.outcome is Outcome.REJECTED
            else len(stream.token_s)
            for stream in self.streams.values()
        ]


def _check_names(path: Path, config: Configured) -> None:
    """Refuse a journal with unknown policies or an unknown placement, from another llmd."""
    own = [instance.policy for instance in config.instances if instance.policy]
    for policy in (config.policy, *own):
        if policy not in POLICIES:
            raise JournalError(f"{path}: written under the policy {policy!r}, unknown here")
    if config.placement not in NAMES:
        wrong = f"the placement {config.placement!r}, unknown here"
        raise JournalError(f"{path}: written under {wrong}")


def read_incident(path: Path) -> Incident:
    """Replay a journal. Raises JournalError for a file that is none, or has nothing to replay."""
    records = list(read_records(path))
    config = records[0] if records else None
    if not isinstance(config, Configured):
        raise JournalError(f"{path}: does not begin with the Core's configuration")
    _check_names(path, config)
    missing = sum(record.num_dropped for record in records if isinstance(record, Gap))
    incident = Incident(str(path), config, num_missing=missing)
    reader = _Reader(incident)
    life = replay(records, reader.begin)
    while (happened := _next(life, path)) is not None:
        reader.take(*happened)
    if not incident.streams:
        raise JournalError(f"{path}: no request that can be replayed")
    return incident


def _next(life: Iterator[Happened], path: Path) -> Happened | None:
    """The next event and the Core's actions; another version's journal may not replay."""
    try:
        return next(life, None)
    except (ValueError, LookupError, RuntimeError) as error:
        raise JournalError(
            f"{path}: does not replay, so another version of llmd wrote it: {error}"
        ) from error


def _as_it_stands(config: Configured, core: Core) -> Configured:
    """The configuration with the policies in force, which operators may have chosen.

    Each instance's other limits stay as they were configured.
    """
    policies = [instance.scheduler.policy.name for instance in core.instances]
    instances = tuple(
        msgspec.structs.replace(
            instance, **{**asdict(limits_of(instance, config)), "policy": policy}
        )
        for instance, policy in zip(config.instances, policies, strict=True)
    )
    return msgspec.structs.replace(config, policy=policies[0], instances=instances)


class _Reader:
    """Collects an incident from its replayed events and the Core's actions."""

    def __init__(self, incident: Incident) -> None:
        self._incident = incident
        configs = incident.config.instances
        self._recorder = Recorder(RequestLog.empty(0), [None] * len(configs), configs)
        incident.instances = self._recorder.instances
        self._core = Core(incident.config)
        self._sent: dict[tuple[int, int], tuple[float, Submit]] = {}
        self._copying: dict[tuple[int, int], float] = {}
        self._answered_s: dict[int, float] = {}
        self._sending: dict[int, Send] = {}
        self._tick_s = NEVER  # the tick that was asked for
        self._woken_s: dict[int, float] = {}
        self._counted = (0, 0)  # handoffs, failed ones

    def begin(self, core: Core) -> None:
        """A Core begins: a new one, or a checkpoint's with ready workers."""
        self._core = core
        self._sent.clear()
        self._copying.clear()
        self._sending.clear()
        self._tick_s = NEVER
        self._count()
        incident = self._incident
        if not incident.streams and core.instances:
            incident.config = _as_it_stands(incident.config, core)
            incident.inputs.clear()
            is_ready = any(instance.state is WorkerState.READY for instance in core.instances)
            incident.state = checkpoint(core, 0.0) if is_ready else None
        for instance in core.instances:
            if instance.state is WorkerState.READY:
                incident.homes.setdefault(instance.index, _home(instance))

    def take(self, event: Event, actions: list[Action]) -> None:
        incident = self._incident
        if isinstance(event, RequestArrived):
            for index in range(event.n):
                incident.streams[sequence_id(event.request, index)] = JournalStream(event)
        elif isinstance(event, WorkerReady):
            pool = Pool(
                event.num_blocks,
                event.block_bytes,
                event.num_host_blocks,
                event.copy_block_s,
                windows=event.windows,
                kinds=event.kinds,
                state_pages=event.state_pages,
            )
            home = JournalInstance(
                event.now,
                pool,
                event.step_s,
                event.token_s,
                event.forward_tokens,
                event.most_times,
                event.row_s,
                event.same_until,
                event.now - self._woken_s.pop(event.instance, event.now),
            )
            incident.homes.setdefault(event.instance, home)
            for death in incident.deaths:
                if death.lost.instance == event.instance:
                    death.ready_s = min(death.ready_s, event.now)
        elif isinstance(event, CopiesDone):
            self._copied(event)
        elif isinstance(event, WorkerLost):
            self._lost(event)
        elif isinstance(event, TransferEnded):
            self._landed(event)
        elif isinstance(event, Tick):
            self._woke(event.now, NEVER)
        elif isinstance(event, LinkChanged):
            incident.links.changes.append(event)
        elif isinstance(event, INPUTS):
            incident.inputs.append(event)
        for action in actions:
            self._action(event.now, action)
        if isinstance(event, StepDone):
            self._answer(event)
        before = self._counted
        self._count()
        more = [now - then for now, then in zip(self._counted, before, strict=True)]
        incident.handoffs += more[0]
        incident.handoffs_failed += more[1]

    def _count(self) -> None:
        counters = self._core.counters
        self._counted = counters.handoffs, counters.handoffs_failed

    def _lost(self, event: WorkerLost) -> None:
        """Drop what the dead worker was to answer."""
        self._incident.deaths.append(Death(event))
        for plans in self._sent, self._copying:
            for plan in [plan for plan in plans if plan[0] == event.instance]:
                del plans[plan]
                self._incident.lost_s[plan] = event.now
        self._recorder.stopped(self._core.instances[event.instance], event.now)

    def _answer(self, event: StepDone) -> None:
        sent = self._sent.pop((event.instance, event.step), None)
        before_s = self._answered_s.get(event.instance, 0.0)
        self._answered_s[event.instance] = event.now
        if event.hashes:
            blocks = zip(event.filled.tolist(), event.filled_at.tolist(), strict=True)
            self._incident.hashes.update(zip(blocks, split_hashes(event.hashes), strict=True))
        if sent is not None:
            sent_s, plan = sent
            start_s, batch = max(sent_s, before_s), plan.batch
            instance = self._core.instances[event.instance]
            step = JournalStep(
                event.instance,
                event.step,
                within_windows(plan.work, batch, instance.windows),
                start_s,
                event.now,
                event.elapsed_s,
                is_behind=sent_s < before_s,
                awaits=batch.awaits > 0,
            )
            self._incident.steps.append(step)
            done = Computed(start_s, event.now, event.now - start_s, event.reasons, None)
            self._recorder.answered(instance, plan.work, done)
            if event.offers.size or (batch.drafts.size and event.counts.size):
                _note_drafts(self._incident.drafts, plan, event)

    def _copied(self, event: CopiesDone) -> None:
        sent_s = self._copying.pop((event.instance, event.step), event.now)
        self._incident.swaps.append(Swap(event.step, sent_s, event))

    def _woke(self, now: float, next_s: float) -> None:
        """The tick that was asked for is over; the next is asked for."""
        if self._tick_s < NEVER:
            self._incident.ticks[self._tick_s] = now
        self._tick_s = next_s

    def _landed(self, event: TransferEnded) -> None:
        """A transfer is over at one of its ends."""
        sent = self._sending.get(event.transfer)
        recorded = self._incident.links.transfers.get(event.transfer)
        if recorded is not None:
            recorded.ends.append(event)
        if sent is not None and event.instance == sent.target:
            block_size = self._incident.config.block_size
            token_bytes = self._core.instances[sent.source].block_bytes / block_size
            log = self._incident.instances[sent.source]
            log.transfers += event.num_right > 0
            log.sent_bytes += token_bytes * min(sent.num_tokens, event.num_right * block_size)
            log.transfer_s += event.elapsed_s
            del self._sending[event.transfer]

    def _action(self, now: float, action: Action) -> None:
        streams = self._incident.streams
        if isinstance(action, Submit):
            batch = action.batch
            self._sent[batch.instance, batch.step] = (now, action)
            if action.work.num_tokens:
                self._recorder.planned(self._core.instances[batch.instance], now)
            if batch.out_blocks.size or batch.in_blocks.size:
                self._copying[batch.instance, batch.step] = now
        elif isinstance(action, WakeAt):
            self._woke(now, action.time_s)
        elif isinstance(action, Send):
            self._sending[action.transfer] = action
            self._incident.links.transfers[action.transfer] = JournalTransfer(
                now, action.source, action.target, action.blocks.size, action.num_tokens
            )
        elif isinstance(action, Wake):
            self._woken_s[action.instance] = now
        elif isinstance(action, Started):
            stream = streams[action.sequence]
            stream.started_s, stream.instance = now, action.instance
            stream.sequence = self._core.sequences[action.sequence]
        elif isinstance(action, Deliver):
            pairs = zip(action.sequences.tolist(), action.reasons.tolist(), strict=True)
            for sequence, reason in pairs:
                stream = streams[sequence]
                if reason == FinishReason.ERROR:
                    stream.outcome = Outcome.FAILED
                    continue
                stream.token_s.append(now)
                if reason:
                    stream.outcome = Outcome.FINISHED
        elif isinstance(action, Finished):
            failed = action.reason in (FinishReason.ERROR, FinishReason.ABORT)
            streams[action.sequence].outcome = Outcome.FAILED if failed else Outcome.FINISHED
        elif isinstance(action, Rejected):
            first = streams[sequence_id(action.request, 0)]
            for index in range(first.arrival.n):
                streams[sequence_id(action.request, index)].outcome = Outcome.REJECTED


def _note_drafts(drafts: RecordedDrafts, plan: Submit, event: StepDone) -> None:
    """Note the drafts that a step tried, and those offered behind what it sampled."""
    batch = plan.batch
    sampled = batch.samples.view(bool)
    lengths = (batch.starts + batch.counts)[sampled].tolist()
    counts = event.counts.tolist() or [1] * len(lengths)
    offers = event.offers.tolist() or [0] * len(lengths)
    tried = batch.drafts[sampled].tolist() if batch.drafts.size and event.counts.size else []
    rows = zip(plan.sequences.tolist(), lengths, counts, offers, strict=True)
    for row, (sequence, length, count, offer) in enumerate(rows):
        drafts.offered(sequence, length + count, offer)
        if tried and tried[row]:
            drafts.tried(sequence, length, tried[row], min(count - 1, tried[row]))


def _home(instance: Instance) -> JournalInstance:
    """A worker's report when it was ready, from what a checkpoint kept of it."""
    scheduler = instance.scheduler
    swap = scheduler.swap_stats()
    pool = Pool(
        instance.kv.pool.num_blocks,
        instance.block_bytes,
        swap.host.total,
        swap.copy_block_s,
        windows=instance.windows,
        kinds=instance.kinds,
        state_pages=instance.state_pages,
    )
    step_time = instance.step_time
    return JournalInstance(
        0.0,
        pool,
        step_time.mean_s,
        step_time.chunk_s(1),
        instance.forward_tokens,
        instance.most_times,
        same_until=instance.same_until,
    )
