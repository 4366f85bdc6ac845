"""One instance of the Core: its scheduler, its worker's state, and its times to plan a step."""

from collections import deque
from dataclasses import replace
from enum import Enum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from daemon.core.events import Configured, InstanceConfig, StepDone, WorkerReady
from daemon.core.limits import limits_of
from daemon.core.reserved_view import reserved_status, written_share
from daemon.core.snapshot import MAX_BLOCKS_SHOWN, STEPS_SHOWN, InstanceStatus
from daemon.core.wakes import AT_ONCE, NEVER
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import NO_WORK, StepWork
from daemon.memory.kv_cache import KVCache
from daemon.scheduler.in_flight import Answer, InFlightStep
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.step import Limits
from daemon.state.batch import Batch
from daemon.state.pause import MIN_PAUSE_S, PAUSE_TIMES
from daemon.state.role import Role
from daemon.state.sequence import Sequence

Number = TypeVar("Number", bound=np.generic)
SLOW_STEP_S = 0.020
PLAN_GAP_S = 0.004
"""The time before the running step's expected end at which the next one is planned.

Enough for a timer that is a millisecond late, the plan's way and its queueing on the device, which
would else idle; arrivals within it join a step later.
"""


class PromptDelay:
    """Measures pauses behind prompts: steps with prompt tokens, and the next step with decodes."""

    def __init__(self) -> None:
        self.since_s = -1.0  # start of the first of the newest steps without decodes; -1: none
        self.since_step = 0  # number of that step

    def answered(
        self, flown: InFlightStep, began_s: float, now: float, scheduler: Scheduler
    ) -> tuple[float, int] | None:
        """(pause, number of sequences) until this answer; their columns count it too.

        The step began at `began_s`; its answer has not been taken by the scheduler yet.
        """
        work, table = flown.work, scheduler.slots
        table.first_step[flown.firsts] = flown.step
        waited = self.since_s >= 0.0
        if not work.num_decodes:
            if not waited:
                self.since_s, self.since_step = began_s, flown.step
            return None
        since_s = self.since_s if waited else began_s
        since_step = self.since_step if waited else flown.step
        self.since_s = -1.0
        if now - since_s <= MIN_PAUSE_S:
            return None
        alone_s = scheduler.step_time.decode_s(work.num_decodes, work.decode_context)
        took_s = now - since_s - (work.times - 1) * alone_s  # until their first token came
        if took_s <= max(MIN_PAUSE_S, PAUSE_TIMES * alone_s):
            return None
        rows = flown.slots[table.epoch[flown.slots] == flown.epochs]
        rows = rows[table.first_step[rows] < since_step]  # the others began in the meantime
        pause_s = took_s - alone_s
        table.behind_prompts_s[rows] += pause_s
        return (pause_s, rows.size) if rows.size else None


class WorkerState(Enum):
    """The state of an instance's worker."""

    LOADING = "loading"
    READY = "ready"
    LOST = "lost"
    GIVEN_UP = "given up"  # it was lost, and none is started in its place


_READY = WorkerState.READY  # to look it up in its enum takes as long as a call


class Instance:
    """One worker's scheduler, and the state of the worker."""

    def __init__(self, index: int, config: InstanceConfig, core: Configured) -> None:
        self.index = index
        self.config = config
        self.state = WorkerState.LOADING
        self.role = config.role
        self.drained = False  # the operator wants it idle
        self.block_bytes = 0
        self.step_began_s = 0.0  # start of the oldest step in flight
        self.batch_rows = 0
        self.newest_work = NO_WORK
        self._newest_works: deque[StepWork] = deque(maxlen=STEPS_SHOWN)
        self.due_s = NEVER  # time to plan its next step
        # (pause behind prompts until the newest answer, number of sequences); None: none paused.
        self.behind_prompts: tuple[float, int] | None = None
        self._prompt_delay = PromptDelay()
        self.limits = limits = limits_of(config, core)
        self._kv_shape = (core.block_size, limits.max_running, core.max_len, core.prefix_cache)
        policy = POLICIES[limits.policy]()
        self.scheduler = Scheduler(
            index,
            policy,
            Limits(
                limits.max_running,
                limits.max_batch_tokens,
                limits.prefill_chunk,
                config.stages,
                limits.decode_admission,
            ),
            self._memory(0),
            limits.swap or policy.swap,
        )
        self.reconfigure(core)

    def reconfigure(self, core: Configured) -> None:
        """Apply changed limits, to waiting sequences too."""
        self.scheduler.set_starve_s(core.starve_s)
        self.scheduler.set_max_pause_s(core.max_pause_s)

    @property
    def step_time(self) -> StepTimeModel:
        """The learned model of its step times."""
        return self.scheduler.step_time

    @property
    def step_tokens(self) -> int:
        """The tokens that its steps are filled up to."""
        return self.scheduler.limits.step_tokens

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that its whole pool can hold."""
        return self.scheduler.kv.capacity_tokens

    def can_hold(self, num_tokens: int) -> bool:
        """Whether its worker lives and its whole pool could hold `num_tokens`."""
        return self.state is WorkerState.READY and self.capacity_tokens >= num_tokens

    def takes(self, num_tokens: int) -> bool:
        """Whether it can hold a sequence of `num_tokens`, and is not drained."""
        return not self.drained and self.can_hold(num_tokens)

    def suits(self, sequence: Sequence) -> bool:
        """Whether its role includes the next work of a sequence."""
        other = Role.PREFILL if sequence.num_output_tokens else Role.DECODE
        return self.role is not other

    @property
    def may_draft(self) -> bool:
        """Whether rows may verify drafts: their tokens are known before the next step begins, and
        some drafts would pay.
        """
        alone = not self.config.ahead and self.config.stages == 1
        return alone and self.scheduler.drafting.looks

    @property
    def depth(self) -> int:
        """The number of steps that may be in flight."""
        if self.limits.depth:
            return self.limits.depth
        spare = self.config.ahead or self.scheduler.step_time.mean_s <= SLOW_STEP_S
        return self.config.stages + int(spare)

    def ready(self, said: WorkerReady) -> None:
        """Begin with a worker that can compute, with empty pools."""
        self.state = WorkerState.READY
        self.block_bytes = said.block_bytes
        memory = self._memory(said.num_blocks)
        step_time = StepTimeModel(said.step_s, said.token_s, first_row_s=said.row_s)
        host = said.num_host_blocks, said.copy_block_s
        self.scheduler.on_worker_ready(memory, step_time, *host, said.now)
        self.scheduler.drafting.same_until = said.same_until
        self.scheduler.steady_decodes.most_times = said.most_times
        self.scheduler.limits = replace(self.scheduler.limits, forward_tokens=self._size(said))
        self.update_due()

    def _size(self, said: WorkerReady) -> int:
        """The tokens up to which prompts fill its steps; 0: the budget was configured, or is
        its policy's on any device.
        """
        fills = self.config.budget_is_own and POLICIES[self.limits.policy].fills_device
        return (said.forward_tokens or Policy.batch_tokens) if fills else 0

    def lost(self, now: float, blamed: bool) -> list[Sequence]:
        """Reset, as the worker died: its KV is gone, and running sequences wait again.

        Returns the sequences that killed it, if its work is `blamed`.
        """
        self.state = WorkerState.LOST
        self.batch_rows, self.newest_work = 0, NO_WORK
        self._newest_works.clear()
        self._prompt_delay = PromptDelay()
        self.due_s = NEVER
        return self.scheduler.on_worker_lost(self._memory(0), now, blamed)

    def set_policy(self, policy: str, now: float) -> None:
        """Rank its sequences by another policy from now on."""
        chosen = POLICIES[policy]()
        self.scheduler.set_policy(chosen, self.limits.swap or chosen.swap, now)

    def submitted(self, batch: Batch, now: float) -> InFlightStep:
        """Note that a step was planned; returns its record until it answers."""
        in_flight = self.scheduler.in_flight
        if len(in_flight) == 1:
            self.step_began_s = now
        self.batch_rows = batch.slots.size
        flown = in_flight.newest
        self.newest_work = flown.work
        self._newest_works.append(flown.work)
        self.update_due()
        return flown

    def answered(self, event: StepDone) -> Answer | None:
        """Take a step's answer and learn from its time; None if it is not the awaited one."""
        self.behind_prompts = None
        flying, delay = self.scheduler.in_flight.steps, self._prompt_delay
        is_looked_at = flying and (flying[0].work.chunks or delay.since_s >= 0.0)
        if is_looked_at and flying[0].step == event.step:
            began_s = self.step_began_s
            self.behind_prompts = delay.answered(flying[0], began_s, event.now, self.scheduler)
        answer = self.scheduler.complete(event.step, event.reasons, event.counts, event.offers)
        if answer is not None:
            if answer.work.num_decodes or answer.work.chunks:
                self._note_time(answer, event.now)
                self.step_time.observe(answer.work, event.elapsed_s)
            self.step_began_s = event.now
            self.update_due()
        return answer

    def _note_time(self, answer: Answer, now: float) -> None:
        """Have drafting learn a decode step's time from plan to answer."""
        if answer.work.chunks:
            return
        expected_s = self.step_time.predict_s(answer.work)
        if expected_s > 0.0:
            ratio = (now - self.step_began_s) / expected_s
            self.scheduler.drafting.record.timed(answer.drafts[0] > 0, ratio)

    def update_due(self) -> None:
        """Update the time to plan its next step: at once, late in the running step, or never.

        It changes with its worker's state and the steps in flight alone.
        """
        flying = len(self.scheduler.in_flight.steps)
        if self.state is not _READY:
            self.due_s = NEVER
        elif not flying:
            self.due_s = AT_ONCE
        elif flying >= self.depth or self.scheduler.holds_back:
            self.due_s = NEVER
        elif self.config.stages > 1:
            self.due_s = AT_ONCE
        else:
            expected_s = self.scheduler.step_time.predict_s(self.newest_work)
            self.due_s = max(self.step_began_s, self.step_began_s + expected_s - PLAN_GAP_S)

    @property
    def wait_s(self) -> float:
        """Predicted time to compute all that waits there."""
        pending = self.scheduler.waiting.num_uncomputed_tokens
        return self.step_time.prefill_s(pending) if pending else 0.0

    def status(self) -> InstanceStatus:
        """Its part of a snapshot."""
        pool = self.scheduler.kv.pool
        ledger = pool.ledger()
        swap = self.scheduler.swap_stats()
        return InstanceStatus(
            name=self.config.name,
            role=self.role,
            device=self.config.device,
            state=self.state.value,
            policy=self.scheduler.policy.name,
            running=self.scheduler.num_running,
            waiting=len(self.scheduler.waiting),
            kv_blocks=ledger.total,
            kv_free=ledger.free,
            kv_held=ledger.held,
            kv_cached=ledger.cached,
            kv_fenced=ledger.fenced,
            kv_reserved=self.scheduler.kv.reservations.num_unheld,
            kv_block_bytes=self.block_bytes,
            block_map=shrunk(pool.uses()),
            steps_in_flight=len(self.scheduler.in_flight),
            steps=self.scheduler.step,
            step_s=self.step_time.mean_s,
            batch_rows=self.batch_rows,
            batch_tokens=self.newest_work.once.num_tokens,
            swap=swap.mode,
            host_blocks=swap.host.total,
            host_held=swap.host.held + swap.host.fenced,
            out_blocks=swap.num_out,
            in_blocks=swap.num_in,
            link_s=swap.link_s,
            levels=_levels(self.scheduler),
            drained=self.drained,
            parcels=len(self.scheduler.moving.remote_kvs),
            parcel_blocks=self.scheduler.moving.remote_kvs.num_blocks,
            kv_written=written_share(self.scheduler),
            batch_budget=self.step_tokens,
            newest_tokens=tuple(work.once.num_tokens for work in self._newest_works),
            reserved=reserved_status(self.scheduler),
        )

    def _memory(self, num_blocks: int) -> KVCache:
        return KVCache(num_blocks, *self._kv_shape)


def _levels(scheduler: Scheduler) -> tuple[int, ...]:
    """Sequences at each level of the policy's queues, running or waiting."""
    counts = [0] * scheduler.policy.num_levels
    if counts:
        members = (member for member in scheduler.slots.members if member is not None)
        for sequence in (*members, *scheduler.waiting):
            counts[sequence.level] += 1
    return tuple(counts)


def shrunk(blocks: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """At most MAX_BLOCKS_SHOWN cells of a column of blocks; each the most of its stretch."""
    if blocks.size <= MAX_BLOCKS_SHOWN:
        return blocks
    edges = np.linspace(0, blocks.size, MAX_BLOCKS_SHOWN + 1).astype(np.int64)
    most: npt.NDArray[Number] = np.maximum.reduceat(blocks, edges[:-1])
    return most


def able_to_hold(instances: list[Instance], num_tokens: int) -> list[Instance]:
    """The instances that can hold `num_tokens`, drained ones only where no others can; while none
    is ready, the lost ones.
    """
    if taking := [instance for instance in instances if instance.takes(num_tokens)]:
        return taking
    if any(instance.state is WorkerState.READY for instance in instances):
        return [instance for instance in instances if instance.can_hold(num_tokens)]
    return [instance for instance in instances if instance.state is WorkerState.LOST]
