"""One instance of the Core: its scheduler, its worker's state, and its times to plan a step."""

from collections import deque
from dataclasses import replace
from enum import Enum
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.core.values.events import (
    BudgetChosen,
    Configured,
    InstanceConfig,
    PolicyChosen,
    StepDone,
    WorkerReady,
)
from daemon.core.values.limits import chunks_by_device, limits_of
from daemon.core.values.snapshot import (
    MAX_BLOCKS_SHOWN,
    STEPS_SHOWN,
    ByKind,
    InstanceStatus,
    KindStatus,
    StateStatus,
)
from daemon.core.wakes import AT_ONCE, NEVER
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import NO_WORK, StepWork
from daemon.memory.block_pool import BlockUse
from daemon.memory.kv_cache import KVCache, PageKinds
from daemon.memory.layered_kv import LayeredKV
from daemon.memory.snapshot_kv import SnapshotKV
from daemon.scheduler.in_flight import Answer, InFlightStep
from daemon.scheduler.moving import Moving
from daemon.scheduler.pace import StreamPace
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.prompt_delay import PromptDelay
from daemon.scheduler.reserved_view import reserved_status, written_share
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.steady_run import calm_plans
from daemon.scheduler.step import Limits
from daemon.state.batch import Batch
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.wire.columns import UInt8

Number = TypeVar("Number", bound=np.generic)
SLOW_STEP_S = 0.020
PLAN_GAP_S = 0.004
"""The time before the running step's expected end at which the next one is planned.

Enough for a timer that is a millisecond late, the plan's way and its queueing on the device, which
would else idle; arrivals within it join a step later.
"""


class WorkerState(Enum):
    """The state of an instance's worker."""

    ASLEEP = "asleep"  # none is started until another instance has no room
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
        self.state = WorkerState.ASLEEP if config.wakes_in_s else WorkerState.LOADING
        self.role = config.role
        self.forward_tokens = 0  # its worker's target forward size; 0: unknown
        self.mixed_since_s = -1.0  # since when it is in the mixed pool; -1: in that of its role
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
        self.chosen_budget = 0  # tokens of a step, by an operator; 0: as configured
        # The steps that may be in flight, where that does not depend on their times.
        self.known_depth = limits.depth or (config.stages + 1 if config.ahead else 0)
        self._kv_shape = (core.block_size, limits.max_running, core.max_len, core.prefix_cache)
        self.windows: tuple[int, ...] = ()  # of its worker's groups of layers
        self.kinds: tuple[str, ...] = ()  # of the same
        self.state_pages = 0  # of its worker, as in `WorkerReady`
        self.same_until: tuple[int, ...] = ()  # of its worker, as in `WorkerReady`
        self.most_times = 1  # likewise
        self.kv = self._memory(0)
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
            self.kv,
            limits.swap or policy.swap,
        )
        self.moving = Moving(self.scheduler)
        self.pace: StreamPace = self.scheduler.pace  # the bound on pauses of its streams
        self.reconfigure(core)

    def reconfigure(self, core: Configured) -> None:
        """Apply changed limits, to waiting sequences too."""
        self.scheduler.set_starve_s(core.starve_s)
        self.scheduler.set_max_pause_s(core.max_pause_s)
        self._counts_answers = core.mixed_pool

    @property
    def step_time(self) -> StepTimeModel:
        """The learned model of its step times."""
        return self.scheduler.step_time

    @property
    def pool(self) -> Role:
        """The pool that it is in: its role's, or the mixed one while it does other work."""
        return self.role if self.mixed_since_s < 0.0 else Role.MIXED

    @property
    def step_tokens(self) -> int:
        """The tokens that its steps are filled up to."""
        return self.scheduler.limits.step_tokens

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that its whole pool can hold."""
        return self.kv.capacity_tokens

    @property
    def calm_plans(self) -> float:
        """The number of plans that it can surely make, without an arrival, before anyone waits
        there or goes elsewhere.
        """
        if self.drained or self.role is Role.PREFILL:
            return 0.0
        return calm_plans(self.scheduler)

    def can_hold(self, num_tokens: int) -> bool:
        """Whether its worker lives and its whole pool could hold `num_tokens`."""
        return self.state is _READY and self.kv.capacity_tokens >= num_tokens

    def takes(self, num_tokens: int) -> bool:
        """Whether it can hold a sequence of `num_tokens`, and is not drained."""
        is_ready = self.state is _READY and not self.drained
        return is_ready and self.kv.capacity_tokens >= num_tokens

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
        return alone and self.scheduler.looks_for_drafts

    @property
    def depth(self) -> int:
        """The number of steps that may be in flight."""
        spare = self.scheduler.step_time.mean_s <= SLOW_STEP_S
        return self.known_depth or self.config.stages + int(spare)

    def ready(self, said: WorkerReady) -> None:
        """Begin with a worker that can compute, with empty pools."""
        self.state = WorkerState.READY
        self.block_bytes, self.windows = said.block_bytes, said.windows
        self.kinds, self.state_pages = said.kinds, said.state_pages
        self.forward_tokens = said.forward_tokens
        self.same_until, self.most_times = said.same_until, said.most_times
        self.kv = self._memory(said.num_blocks)
        step_time = StepTimeModel(said.step_s, said.token_s, first_row_s=said.row_s)
        host = said.num_host_blocks, said.copy_block_s
        self.scheduler.on_worker_ready(
            self.kv,
            step_time,
            *host,
            said.now,
            same_until=self.same_until,
            most_times=self.most_times,
        )
        self._set_step_size()
        self.update_due()

    def give_role(self, role: Role) -> None:
        """Have it prefer the work of another role."""
        self.role, self.mixed_since_s = role, -1.0
        self._set_step_size()

    def _set_step_size(self) -> None:
        """Fill its steps up to the size of its device, where the policy in force asks for that, or
        where it computes prompts for others: in chunks that just saturate it (TetriInfer, section
        3.3.3). A configured budget stays, and so does one of the configured policy: its worker has
        memory for that. An operator may choose any below it.
        """
        own, size, policy = self.limits, self.forward_tokens, self.scheduler.policy
        budget, chunk = own.max_batch_tokens, own.prefill_chunk
        if self.chosen_budget:
            budget = min(budget, self.chosen_budget)
            chunk, size = min(chunk, budget), 0
        elif not self.config.budget_is_own:
            size = 0
        elif policy.fills_device:
            size = size or Policy.batch_tokens
        elif not chunks_by_device(policy.name, self.role is Role.PREFILL, is_open=True):
            size = 0
        elif self._may_chunk_by_device:
            budget, chunk = max(budget, size), max(chunk, size)
        self.scheduler.set_limits(
            replace(
                self.scheduler.limits,
                max_batch_tokens=budget,
                prefill_chunk=chunk,
                forward_tokens=size,
            )
        )

    @property
    def _may_chunk_by_device(self) -> bool:
        """Whether the size of its device is a chunk's in a role that it may get."""
        is_open = self.config.budget_is_own and self.config.chunk_is_own
        return chunks_by_device(self.limits.policy, may_prefill=True, is_open=is_open)

    def lost(self, now: float, blamed: bool) -> list[Sequence]:
        """Reset, as the worker died: its KV is gone, and running sequences wait again.

        Returns the sequences that killed it, if its work is `blamed`.
        """
        self.state = WorkerState.LOST
        self.batch_rows, self.newest_work = 0, NO_WORK
        self._newest_works.clear()
        self._prompt_delay = PromptDelay()
        self.due_s = NEVER
        self.kv = self._memory(0)
        return self.scheduler.on_worker_lost(self.kv, now, blamed)

    def choose(self, event: PolicyChosen | BudgetChosen) -> None:
        """Take an operator's choice."""
        match event:
            case PolicyChosen():
                self.set_policy(event.policy, event.now)
            case BudgetChosen():
                self.set_budget(event.tokens)

    def set_policy(self, policy: str, now: float) -> None:
        """Rank its sequences by another policy from now on."""
        chosen = POLICIES[policy]()
        self.scheduler.set_policy(chosen, self.limits.swap or chosen.swap, now)
        self._set_step_size()

    def set_budget(self, tokens: int) -> None:
        """Have its steps filled up to `tokens`, or to its configured budget where that is less; 0:
        as configured.
        """
        self.chosen_budget = tokens
        self._set_step_size()

    def submitted(self, batch: Batch, now: float) -> InFlightStep:
        """Note that a step was planned; returns its record until it answers."""
        flying = self.scheduler.in_flight.steps
        flown = flying[-1]
        self.planned(flown.work, batch.slots.size, len(flying), now)
        return flown

    def planned(self, work: StepWork, num_rows: int, num_flying: int, now: float) -> None:
        """Note a plan, with which so many steps are in flight."""
        if num_flying == 1:
            self.step_began_s = now
        self.batch_rows, self.newest_work = num_rows, work
        self._newest_works.append(work)
        self.due_s = self._due_s(num_flying)

    def took(self, works: list[StepWork], num_rows: int, step_began_s: float, due_s: float) -> None:
        """Note the plans of a run of steps, the begin of the oldest in flight, and the time to plan
        the next.
        """
        if works:
            self.batch_rows, self.newest_work = num_rows, works[-1]
            self._newest_works.extend(works[-STEPS_SHOWN:])
        self.step_began_s, self.due_s = step_began_s, due_s

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
            num_drafting = answer.drafts[0]
            self.learn(answer.work, event.elapsed_s, event.now, len(flying), num_drafting > 0)
        return answer

    def learn(
        self, work: StepWork, elapsed_s: float, now: float, num_flying: int, drafts: bool = False
    ) -> None:
        """Learn from the time of an answered step; so many are left in flight. Drafting learns
        that of a decode step from plan to answer.
        """
        step_time = self.scheduler.step_time
        if work.num_decodes and not work.chunks:
            expected_s = step_time.predict_s(work)
            if expected_s > 0.0:
                ratio = (now - self.step_began_s) / expected_s
                self.scheduler.on_step_time(ratio, has_drafts=drafts)
        if work.num_decodes or work.chunks:
            step_time.observe(work, elapsed_s)
        self.step_began_s = now
        self.due_s = self._due_s(num_flying)

    @property
    def waits_for_prompts(self) -> bool:
        """Whether the newest steps had no decodes, so that streams wait behind prompts."""
        return self._prompt_delay.since_s >= 0.0

    def update_due(self) -> None:
        """Update the time to plan its next step: at once, late in the running step, or never.

        It changes with its worker's state and the steps in flight alone.
        """
        self.due_s = self._due_s(len(self.scheduler.in_flight.steps))

    def _due_s(self, num_flying: int) -> float:
        if self.state is not _READY:
            return NEVER
        if not num_flying:
            return AT_ONCE
        if num_flying >= (self.known_depth or self.depth) or self.scheduler.holds_back:
            return NEVER
        if self.config.stages > 1:
            return AT_ONCE
        began_s = self.step_began_s
        expected_s = self.scheduler.step_time.predict_s(self.newest_work)
        return max(began_s, began_s + expected_s - PLAN_GAP_S)

    @property
    def wait_s(self) -> float:
        """Predicted time to compute all that waits there; with a mixed pool, of answers too."""
        queue = self.scheduler.waiting
        pending = queue.num_uncomputed_tokens
        prompts_s = self.step_time.prefill_s(pending) if pending else 0.0
        if not (self._counts_answers and queue) or self.role is Role.PREFILL:
            return prompts_s
        left = max(0, queue.likely_tokens - queue.num_tokens)
        return prompts_s + left * self.step_time.mean_s / max(1, self.scheduler.num_running)

    def status(self) -> InstanceStatus:
        """Its part of a snapshot."""
        pool = self.kv.pool
        ledger = pool.ledger()
        swap = self.scheduler.swap_stats()
        block_map, kinds = pool.uses(), self.kv.page_kinds()
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
            kv_reserved=self.kv.reservations.num_unheld,
            kv_block_bytes=self.block_bytes,
            block_map=shrunk(block_map),
            by_kind=msgspec.UNSET if kinds is None else _by_kind(kinds, block_map),
            states=self._state_status(),
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
            ahead_blocks=swap.num_ahead,
            ahead_used=swap.num_ahead_used,
            burst_blocks=swap.num_reserve,
            link_s=swap.link_s,
            levels=_levels(self.scheduler),
            drained=self.drained,
            remote_kvs=len(self.moving.remote_kvs),
            remote_kv_blocks=self.moving.remote_kvs.num_blocks,
            kv_written=written_share(self.scheduler),
            batch_budget=self.step_tokens,
            chosen_budget=self.chosen_budget or msgspec.UNSET,
            newest_tokens=tuple(work.once.num_tokens for work in self._newest_works),
            reserved=reserved_status(self.scheduler),
            pool=self.pool if self.pool is not self.role else "",
            decode_admission=self.limits.decode_admission,
        )

    def _state_status(self) -> StateStatus | msgspec.UnsetType:
        if not self.state_pages:
            return msgspec.UNSET
        return StateStatus(self.state_pages, *self.kv.state_status())

    def _memory(self, num_blocks: int) -> KVCache:
        if not (self.windows or self.state_pages):
            return KVCache(num_blocks, *self._kv_shape)
        chunk = self.limits.max_batch_tokens
        if self._may_chunk_by_device:
            chunk = max(chunk, self.forward_tokens)
        groups = self.windows, chunk, self.kinds, self.state_pages
        block_size, max_slots, max_len, prefix_cache = self._kv_shape
        if self.state_pages and prefix_cache:
            return SnapshotKV(num_blocks, block_size, max_slots, max_len, *groups)
        return LayeredKV(num_blocks, *self._kv_shape, *groups)


def _levels(scheduler: Scheduler) -> tuple[int, ...]:
    """Sequences at each level of the policy's queues, running or waiting."""
    counts, running = [0] * scheduler.policy.num_levels, scheduler.running
    if counts:
        for sequence in (*running.at(running.unordered_slots), *scheduler.waiting):
            counts[sequence.level] += 1
    return tuple(counts)


def shrunk(blocks: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """At most MAX_BLOCKS_SHOWN cells of a column of blocks; each the most of its stretch."""
    if blocks.size <= MAX_BLOCKS_SHOWN:
        return blocks
    edges = np.linspace(0, blocks.size, MAX_BLOCKS_SHOWN + 1).astype(np.int64)
    most: npt.NDArray[Number] = np.maximum.reduceat(blocks, edges[:-1])
    return most


def _by_kind(kinds: PageKinds, uses: UInt8) -> ByKind:
    """The pages of each kind by use, and the map of kinds; `uses` of all pages."""
    num_kinds, num_uses = len(kinds.kinds), BlockUse.HELD + 1
    places = kinds.of_pages.astype(np.intp) * num_uses + uses
    counts = np.bincount(places, minlength=num_kinds * num_uses).reshape(num_kinds, num_uses)
    counted = tuple(
        KindStatus(
            kind=kind.name,
            window=kind.window,
            groups=kind.num_groups,
            held=int(of_kind[BlockUse.HELD]),
            fenced=int(of_kind[BlockUse.FENCED]),
            cached=int(of_kind[BlockUse.CACHED]),
        )
        for kind, of_kind in zip(kinds.kinds, counts, strict=True)
    )
    # A cell of both maps shows the same block, the one whose use counts most.
    shown = shrunk(uses.astype(np.uint16) << 8 | kinds.of_pages)
    return ByKind(counted, (shown & 0xFF).astype(np.uint8))


def able_to_hold(instances: list[Instance], num_tokens: int) -> list[Instance]:
    """The instances that can hold `num_tokens`, drained ones only where no others can; while none
    is ready, the lost ones.
    """
    if taking := [instance for instance in instances if instance.takes(num_tokens)]:
        return taking
    if any(instance.state is WorkerState.READY for instance in instances):
        return [instance for instance in instances if instance.can_hold(num_tokens)]
    return [instance for instance in instances if instance.state is WorkerState.LOST]
