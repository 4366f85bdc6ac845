"""A daemon's journal as a run: repeated exactly, or its traffic under another policy or model.

The journal has no text and no true answer lengths; an answer's length is what was delivered of it.
An answer that its client cut short ends at the same token here. Each stream of a request with
n > 1 is a request of its own when the traffic is simulated.
"""

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from daemon.core.actions import Action, Deliver, Finished, Rejected, Started, Submit
from daemon.core.events import (
    Configured,
    Copied,
    Event,
    RequestArrived,
    StepDone,
    WorkerLost,
    WorkerReady,
)
from daemon.cost.work import StepWork
from daemon.journal.reader import JournalError, read_records
from daemon.journal.replay import replay
from daemon.report.records import InstanceLog, Outcome, RequestLog, RunLog
from daemon.request import FinishReason, sequence_id
from daemon.simulator.copies import Ended
from daemon.simulator.pool import Pool
from daemon.simulator.traffic import Traffic


@dataclass(slots=True)
class Stream:
    """One token stream of the journal."""

    arrival: RequestArrived
    started_s: float = float("nan")
    instance: int = -1
    token_s: list[float] = field(default_factory=list)
    outcome: Outcome = Outcome.UNFINISHED


@dataclass(slots=True)
class Step:
    """One step that was answered."""

    instance: int
    number: int
    work: StepWork
    start_s: float  # when it was sent, or the step before it answered, whichever came later
    end_s: float
    elapsed_s: float  # as the worker measured it


@dataclass(slots=True)
class Incident:
    """What a journal file tells, replayed through a Core."""

    config: Configured
    streams: dict[int, Stream] = field(default_factory=dict)  # by sequence, in order of arrival
    steps: list[Step] = field(default_factory=list)
    copies: dict[tuple[int, int], Ended] = field(default_factory=dict)  # by instance and step
    pools: dict[int, Pool] = field(default_factory=dict)  # by instance
    warm_step_s: dict[int, float] = field(default_factory=dict)


def read_incident(path: Path) -> Incident:
    """Replay a journal. Raises JournalError for what is none, or has nothing to replay."""
    records = list(read_records(path))
    config = next(islice(records, 1), None)
    if not isinstance(config, Configured):
        raise JournalError(f"{path}: does not begin with the Core's configuration")
    incident = Incident(config)
    reader = _Reader(incident)
    for event, actions in replay(records):
        reader.take(event, actions)
    if not incident.streams:
        raise JournalError(f"{path}: no request that can be replayed")
    return incident


class _Reader:
    """Collects an incident from the events of its replay and the Core's answers to them."""

    def __init__(self, incident: Incident) -> None:
        self._incident = incident
        self._sent: dict[tuple[int, int], tuple[float, StepWork]] = {}
        self._copying: dict[tuple[int, int], float] = {}
        self._answered_s: dict[int, float] = {}

    def take(self, event: Event, actions: list[Action]) -> None:
        incident = self._incident
        if isinstance(event, RequestArrived):
            for index in range(event.n):
                incident.streams[sequence_id(event.request, index)] = Stream(event)
        elif isinstance(event, WorkerReady):
            incident.pools[event.instance] = Pool(
                event.num_blocks, event.block_bytes, event.num_host_blocks, event.copy_block_s
            )
            incident.warm_step_s[event.instance] = event.step_s
        elif isinstance(event, StepDone):
            self._answer(event)
        elif isinstance(event, Copied):
            self._copied(event)
        elif isinstance(event, WorkerLost):
            self._sent = {at: sent for at, sent in self._sent.items() if at[0] != event.instance}
        for action in actions:
            self._action(event.now, action)

    def _answer(self, event: StepDone) -> None:
        sent = self._sent.pop((event.instance, event.step), None)
        before_s = self._answered_s.get(event.instance, 0.0)
        self._answered_s[event.instance] = event.now
        if sent is not None:
            start_s = max(sent[0], before_s)
            step = Step(event.instance, event.step, sent[1], start_s, event.now, event.elapsed_s)
            self._incident.steps.append(step)

    def _copied(self, event: Copied) -> None:
        """A plan's copies ended: how long after it was sent, in `Ended.end_s`."""
        sent_s = self._copying.pop((event.instance, event.step), event.now)
        self._incident.copies[event.instance, event.step] = Ended(
            event.now - sent_s, event.num_out, event.out_s, event.num_in, event.in_s
        )

    def _action(self, now: float, action: Action) -> None:
        streams = self._incident.streams
        if isinstance(action, Submit):
            self._sent[action.batch.instance, action.batch.step] = (now, action.work)
            if action.batch.out_blocks.size or action.batch.in_blocks.size:
                self._copying[action.batch.instance, action.batch.step] = now
        elif isinstance(action, Started):
            stream = streams[action.sequence]
            stream.started_s, stream.instance = now, action.instance
        elif isinstance(action, Deliver):
            pairs = zip(action.sequences.tolist(), action.reasons.tolist(), strict=True)
            for sequence, reason in pairs:
                stream = streams[sequence]
                stream.token_s.append(now)
                if reason:
                    stream.outcome = Outcome.FINISHED
        elif isinstance(action, Finished):
            failed = action.reason in (FinishReason.ERROR, FinishReason.ABORT)
            streams[action.sequence].outcome = Outcome.FAILED if failed else Outcome.FINISHED
        elif isinstance(action, Rejected):
            for index in range(len(streams)):
                if streams.pop(sequence_id(action.request, index), None) is None:
                    break


def replayed(incident: Incident) -> RunLog:
    """The run as it was: every time is the journal's own."""
    streams = list(incident.streams.values())
    first_s = streams[0].arrival.now
    log = RequestLog.empty(len(streams))
    gaps, owners = [np.zeros(0)], [np.zeros(0, np.int32)]
    for row, stream in enumerate(streams):
        log.arrival_s[row] = stream.arrival.now - first_s
        log.started_s[row] = stream.started_s - first_s
        log.instance[row] = stream.instance
        log.prompt_tokens[row] = stream.arrival.num_prompt_tokens
        log.asked_tokens[row] = log.output_tokens[row] = len(stream.token_s)
        log.outcome[row] = stream.outcome
        if stream.token_s:
            log.first_s[row] = stream.token_s[0] - first_s
            log.last_s[row] = stream.token_s[-1] - first_s
            gaps.append(np.diff(stream.token_s))
            owners.append(np.full(len(stream.token_s) - 1, row, np.int32))
    log.gap_s = np.concatenate(gaps).astype(np.float32)
    log.gap_request = np.concatenate(owners)
    last_s = max((step.end_s for step in incident.steps), default=first_s)
    return RunLog(log, _instances(incident), [], last_s - first_s, 0.0)


def _instances(incident: Incident) -> list[InstanceLog]:
    logs = [InstanceLog(one.name, role=one.role) for one in incident.config.instances]
    for step in incident.steps:
        log = logs[step.instance]
        log.steps += 1
        log.tokens += step.work.num_tokens
        log.busy_s += step.end_s - step.start_s
    return logs


def traffic_of_incident(incident: Incident) -> Traffic:
    """Its requests that got at least a token, for another run; limits and priorities as asked."""
    streams = [stream for stream in incident.streams.values() if stream.token_s]
    arrivals = [stream.arrival for stream in streams]
    return Traffic(
        arrival_s=[one.now for one in arrivals],
        prompts=[one.num_prompt_tokens for one in arrivals],
        answers=[len(stream.token_s) for stream in streams],
        limits=[one.max_tokens for one in arrivals],
        priorities=[one.priority for one in arrivals],
        slo_class=np.zeros(len(streams), np.uint8),
        hashes=lambda row: arrivals[row].hashes,
    )
