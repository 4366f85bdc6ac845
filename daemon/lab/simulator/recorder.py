"""Records a Core's actions for clients and instances, and sums them up at the end."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from daemon.core.instance.instance import Instance
from daemon.core.instance.steady_steps import SteadySteps
from daemon.core.values.events import InstanceConfig
from daemon.cost.profile import Profile
from daemon.cost.step_cost import StepCost
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.lab.report.records import InstanceLog, OperatorLog, Outcome, RequestLog, Span
from daemon.lab.simulator.worker import Computed, Worker
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST
from daemon.state.sequence import Sequence as Running

SAMPLE_STEPS = 4
"""Steps of an instance between samples of its memory and queue; it is also sampled whenever it
begins to work and falls idle, so that means over time are right under any load.
"""


class Recorder:
    """The log of one run. Tokens are kept in columns as they come, and sorted once."""

    def __init__(
        self,
        log: RequestLog,
        profiles: Sequence[Profile | None],
        configs: Sequence[InstanceConfig],
        n: int = 1,
    ) -> None:
        """A profile, or None where the devices are unknown: their operations are not counted.

        Each request has `n` rows of the log, one for each of its answers.
        """
        self.log = log
        self._n = n
        pairs = zip(configs, profiles, strict=True)
        self.instances = [_instance_log(config, profile) for config, profile in pairs]
        self.spans: list[Span] | None = None  # a list: steps and copies are wanted one by one
        self.costs: list[StepCost] | None = None  # by instance, where operators are wanted
        self.workers: Sequence[Worker] | None = (
            None  # by instance, where energy over time is wanted
        )
        self.sequences: list[Running | None] = [None] * len(log)
        self._flops = [_FlopCount(profile) for profile in profiles]
        self._idle = [True] * len(configs)
        self._token_s: list[float] = []
        self._token_sequences: list[npt.NDArray[np.int64]] = []

    def delivered(self, now: float, sequences: npt.NDArray[np.int64]) -> None:
        """One token for each of these sequences."""
        self._token_s.append(now)
        self._token_sequences.append(sequences)

    def started(self, now: float, row: int, sequence: Running, instance: int) -> None:
        """A sequence got its first place in a batch."""
        self.sequences[row] = sequence
        self.log.started_s[row] = now
        self.log.instance[row] = instance

    def ended(self, row: int, outcome: Outcome) -> None:
        """An answer ended without its last token."""
        self.log.outcome[row] = outcome

    def planned(self, instance: Instance, now: float) -> None:
        """A step was planned."""
        if self._idle[instance.index]:
            self._idle[instance.index] = False
            self._sample(instance, now)

    def answered(self, instance: Instance, work: StepWork, done: Computed) -> None:
        """A step answered, and the next ones were planned."""
        log = self.instances[instance.index]
        if work.num_tokens:
            log.steps += 1
            log.tokens += work.num_tokens
            log.busy_s += done.busy_s
            log.flops += work.times * self._flops[instance.index].of(work.once)
            if self.costs is not None:
                _note_operators(log.operators, self.costs[instance.index], work)
            if self.spans is not None:
                self.spans.append(step_span(log.name, work, done.start_s, done.end_s))
        if not instance.scheduler.in_flight:
            self.stopped(instance, done.end_s)
        elif log.steps % SAMPLE_STEPS == 0:
            self._sample(instance, done.end_s)

    def stopped(self, instance: Instance, now: float) -> None:
        """An instance has nothing to do, or its worker died."""
        self._idle[instance.index] = True
        self._sample(instance, now)

    @property
    def wants_each_step(self) -> bool:
        """Whether steps are wanted one by one, or their operators, or power over time."""
        wants_parts = self.spans is not None or self.costs is not None
        return wants_parts or self.workers is not None

    def took(self, instance: Instance, steps: SteadySteps, delivery_s: float) -> None:
        """Many steady decodes were answered, after which others are in flight."""
        answered = steps.answered
        if not answered:
            return
        log, flops = self.instances[instance.index], self._flops[instance.index]
        self._token_s += [step.end_s + delivery_s for step in answered]
        self._token_sequences += [steps.sequences] * len(answered)
        num_rows = steps.sequences.size
        for number, step in enumerate(answered):
            log.steps += 1
            log.tokens += step.work.num_decodes
            log.busy_s += step.busy_s
            log.flops += flops.of(step.work)
            if log.steps % SAMPLE_STEPS == 0:
                held, unwritten = steps.num_held[number], steps.num_unwritten[number]
                self._note(instance, step.end_s, held, unwritten, num_rows)

    def _sample(self, instance: Instance, now: float) -> None:
        kv, running = instance.kv, instance.scheduler.running
        held = kv.pool.num_held
        unwritten = held * kv.block_size - kv.num_written(running.slots, running.computed)
        busy = not self._idle[instance.index]
        num_tokens = instance.newest_work.once.num_tokens if busy else 0
        self._note(instance, now, held, unwritten, num_tokens)

    def _note(
        self, instance: Instance, now: float, held: int, unwritten: int, num_tokens: int
    ) -> None:
        """Take a sample: blocks with an owner, free places in them, and tokens of the step."""
        log, scheduler = self.instances[instance.index], instance.scheduler
        total, block_size = instance.kv.pool.num_blocks, instance.kv.block_size
        log.sample_s.append(now)
        log.sample_allocated.append(held / max(1, total))
        log.sample_written.append((held * block_size - unwritten) / max(1, total * block_size))
        log.sample_running.append(scheduler.num_running)
        log.sample_waiting.append(len(scheduler.waiting))
        log.sample_step_tokens.append(num_tokens)
        if self.workers is not None:
            spent_j = self.workers[instance.index].energy_j(now)
            if spent_j is not None:
                log.sample_energy_j.append(spent_j)

    def finish(self) -> RequestLog:
        """The log, with every token sorted to its request."""
        self._sort_tokens(self.log)
        tell_moves(self.log, self.instances, self.sequences)
        return self.log

    def until_now(self) -> RequestLog:
        """A log with the tokens so far; preemptions and copies are told at the end alone."""
        columns = {each.name: getattr(self.log, each.name).copy() for each in fields(RequestLog)}
        log = RequestLog(**columns)
        self._sort_tokens(log)
        return log

    def _sort_tokens(self, log: RequestLog) -> None:
        """Write every token into its request's row."""
        if self._token_s:
            sizes = [column.size for column in self._token_sequences]
            sequences = np.concatenate(self._token_sequences)
            requests, index = np.divmod(sequences, MAX_SEQUENCES_PER_REQUEST)
            times = np.repeat(np.array(self._token_s), sizes)
            _fill_tokens(log, (requests * self._n + index).astype(np.int32), times)
        whole = (log.output_tokens == log.asked_tokens) & (log.outcome == Outcome.UNFINISHED)
        log.outcome[whole] = Outcome.FINISHED


def tell_moves(
    log: RequestLog, instances: Sequence[InstanceLog], sequences: Sequence[Running | None]
) -> None:
    """Write the preemptions and swaps of the Core's sequences, one per row, into the logs."""
    swaps = np.zeros(len(log), np.int32)
    for row, sequence in enumerate(sequences):
        if sequence is not None:
            log.preemptions[row] = sequence.preemptions
            log.preempted_after_first[row] = sequence.preemptions_after_first > 0
            log.recomputed_tokens[row] = sequence.recomputed_tokens
            log.loans[row] = sequence.loans
            log.swap_s[row] = sequence.swap_s
            if sequence.first_token_s >= 0.0:
                log.paused_s[row] = sequence.paused_s + sequence.behind_prompts_s
            swaps[row] = sequence.swaps
    for instance, instance_log in enumerate(instances):
        here = log.instance == instance
        instance_log.preemptions = int(log.preemptions[here].sum())
        instance_log.swaps = int(swaps[here].sum())


def note_alone(log: RequestLog, workers: Sequence[Worker]) -> None:
    """Write the time alone of every answer's true length at its first instance: equal for all
    policies.
    """
    models = [StepTimeModel(worker.warm_step_s(), worker.warm_token_s()) for worker in workers]
    rows = log.instance.tolist(), log.prompt_tokens.tolist(), log.asked_tokens.tolist()
    log.alone_s = np.array(
        [
            (models[instance].alone_s(num_prompt, num_output) if instance >= 0 else 0.0) or np.nan
            for instance, num_prompt, num_output in zip(*rows, strict=True)
        ],
        np.float64,
    )


def step_span(track: str, work: StepWork, start_s: float, end_s: float) -> Span:
    """A step for the trace viewer."""
    detail: dict[str, float | int | str] = {
        "decodes": work.num_decodes,
        "prompt_tokens": work.once.num_tokens - work.num_decodes,
        "context": work.decode_context,
    }
    if work.times > 1:
        detail["times"] = work.times
    name = "mixed" if work.chunks and work.num_decodes else ""
    name = name or ("prefill" if work.chunks else "decode")
    return Span(track, name, start_s, end_s - start_s, detail)


def _fill_tokens(
    log: RequestLog, requests: npt.NDArray[np.int32], times: npt.NDArray[np.float64]
) -> None:
    """First and last tokens, counts, and the gaps between: tokens come in order of time."""
    order = np.argsort(requests, kind="stable")
    requests, times = requests[order], times[order]
    firsts = np.flatnonzero(np.diff(requests, prepend=-1))
    lasts = np.append(firsts[1:], requests.size) - 1
    present = requests[firsts]
    log.first_s[present] = times[firsts]
    log.last_s[present] = times[lasts]
    log.output_tokens[present] = lasts - firsts + 1
    inner = np.ones(requests.size, np.bool_)
    inner[firsts] = False
    log.gap_s = np.diff(times, prepend=0.0)[inner].astype(np.float32)
    log.gap_request = requests[inner]


class _FlopCount:
    """Multiply-adds of a step, two operations each: every weight once a token, and attention."""

    def __init__(self, profile: Profile | None) -> None:
        self._token = self._pair = 0.0
        if profile is not None:
            model = profile.model
            self._token = 2.0 * model.num_params
            self._pair = 4.0 * model.num_layers * model.num_heads * model.head_dim

    def of(self, work: StepWork) -> float:
        if not work.chunks:
            return self._token * work.num_tokens + self._pair * work.decode_context
        _, pairs = work.prompts()
        attended = work.decode_context + pairs / 2
        return self._token * work.num_tokens + self._pair * attended


def _note_operators(logs: dict[str, OperatorLog], cost: StepCost, work: StepWork) -> None:
    for name, size, time_s in cost.parts(work.once):
        log = logs.setdefault(name, OperatorLog())
        log.calls += work.times
        log.size += work.times * size
        log.time_s += work.times * time_s


def _instance_log(config: InstanceConfig, profile: Profile | None) -> InstanceLog:
    log = InstanceLog(config.name, role=config.role.value)
    if profile is not None:
        log.num_devices = profile.num_devices
        log.peak_flops = profile.device.flops * profile.num_devices
    return log
