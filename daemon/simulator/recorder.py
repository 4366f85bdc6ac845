"""Writes down what a Core's actions mean for clients and instances; sums it up at the end."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from daemon.core.instance import Instance
from daemon.cost.profile import Profile
from daemon.cost.work import NO_WORK, StepWork
from daemon.report.records import InstanceLog, Outcome, RequestLog, Span
from daemon.request import MAX_SEQUENCES_PER_REQUEST
from daemon.sequence import Sequence as Running

SAMPLE_STEPS = 4
"""Every so many steps of an instance, its memory and queue are looked at."""


class Recorder:
    """The log of one run. Tokens are kept as they come, columns by columns, and sorted once."""

    def __init__(
        self, log: RequestLog, profiles: Sequence[Profile | None], names: list[str]
    ) -> None:
        """A profile, or None where the devices are unknown: their operations are not counted."""
        self.log = log
        self.instances = [_instance_log(*one) for one in zip(names, profiles, strict=True)]
        self.spans: list[Span] | None = None  # a list: steps are wanted one by one
        self.sequences: list[Running | None] = [None] * len(log)
        self._flops = [_FlopCount(profile) for profile in profiles]
        self._token_s: list[float] = []
        self._token_sequences: list[npt.NDArray[np.int64]] = []

    def delivered(self, now: float, sequences: npt.NDArray[np.int64]) -> None:
        """One token for each of these sequences."""
        self._token_s.append(now)
        self._token_sequences.append(sequences)

    def started(self, now: float, sequence: Running, instance: int) -> None:
        """A sequence got its first place in a batch."""
        request = sequence.request
        self.sequences[request] = sequence
        self.log.started_s[request] = now
        self.log.instance[request] = instance

    def ended(self, request: int, outcome: Outcome) -> None:
        """A request that ends without its last token."""
        self.log.outcome[request] = outcome

    def step(self, instance: Instance, work: StepWork, start_s: float, end_s: float) -> None:
        """A step was planned and will run from `start_s` to `end_s`."""
        log = self.instances[instance.index]
        log.steps += 1
        log.tokens += work.num_tokens
        log.busy_s += end_s - start_s
        log.flops += self._flops[instance.index].of(work)
        if log.steps % SAMPLE_STEPS == 1:
            self._sample(log, instance, work, start_s)
        if self.spans is not None:
            detail: dict[str, float | int | str] = {
                "decodes": work.num_decodes,
                "prompt_tokens": work.num_tokens - work.num_decodes,
                "context": work.decode_context,
            }
            name = "mixed" if work.chunks and work.num_decodes else ""
            name = name or ("prefill" if work.chunks else "decode")
            self.spans.append(Span(log.name, name, start_s, end_s - start_s, detail))

    def answered(self, instance: Instance, now: float) -> None:
        """A step answered; where none follows, the instance is looked at as it falls idle."""
        if not instance.scheduler.in_flight.steps:
            self._sample(self.instances[instance.index], instance, NO_WORK, now)

    def _sample(self, log: InstanceLog, instance: Instance, work: StepWork, now: float) -> None:
        scheduler = instance.scheduler
        ledger = scheduler.kv.pool.ledger()
        places = max(1, ledger.total * scheduler.kv.block_size)
        written = int(np.add.reduce(scheduler.slots.computed[scheduler.slots.order()]))
        log.sample_s.append(now)
        log.sample_allocated.append(ledger.held / max(1, ledger.total))
        log.sample_written.append(written / places)
        log.sample_running.append(scheduler.num_running)
        log.sample_waiting.append(len(scheduler.waiting))
        log.sample_step_tokens.append(work.num_tokens)

    def finish(self) -> RequestLog:
        """The log, with every token sorted to its request."""
        log = self.log
        if self._token_s:
            sizes = [column.size for column in self._token_sequences]
            requests = np.concatenate(self._token_sequences) // MAX_SEQUENCES_PER_REQUEST
            times = np.repeat(np.array(self._token_s), sizes)
            _fill_tokens(log, requests.astype(np.int32), times)
        swaps = np.zeros(len(log), np.int32)
        for request, sequence in enumerate(self.sequences):
            if sequence is not None:
                log.preemptions[request] = sequence.preemptions
                log.preempted_after_first[request] = sequence.preemptions_after_first > 0
                log.recomputed_tokens[request] = sequence.recomputed_tokens
                log.swap_s[request] = sequence.swap_s
                swaps[request] = sequence.swaps
        whole = (log.output_tokens == log.asked_tokens) & (log.outcome == Outcome.UNFINISHED)
        log.outcome[whole] = Outcome.FINISHED
        for instance, one in enumerate(self.instances):
            here = log.instance == instance
            one.preemptions = int(log.preemptions[here].sum())
            one.swaps = int(swaps[here].sum())
        return log


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
        _, pairs = work.prompts()
        attended = work.decode_context + pairs / 2
        return self._token * work.num_tokens + self._pair * attended


def _instance_log(name: str, profile: Profile | None) -> InstanceLog:
    if profile is None:
        return InstanceLog(name)
    devices = profile.num_devices
    return InstanceLog(name, devices, peak_flops=profile.device.flops * devices)
