"""A scheduler at rest as plain values: with no sequence, and no step or copy in flight."""

from dataclasses import astuple

import msgspec

from daemon.cost.copy_time import CopyTime
from daemon.cost.step_time import StepTimeModel
from daemon.memory.reserve import BurstReserve
from daemon.memory.snapshot_kv import SnapshotKV
from daemon.memory.snapshots import SnapshotState
from daemon.scheduler.ageing import Ageing
from daemon.scheduler.drafting import DraftRecord
from daemon.scheduler.lengths import KindState, SeenLengths
from daemon.scheduler.preemption_stats import PreemptionStats
from daemon.scheduler.residency import Residency
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.start_bound import StartBound
from daemon.scheduler.trust import Pair, PredictorTrust, VerdictState
from daemon.wire.columns import Column, int32


class SchedulerState(msgspec.Struct, frozen=True, array_like=True):
    """All that a resting scheduler's next plans depend on; every block is free or cached."""

    policy: str
    step: int
    stats: tuple[int, int, int, int]  # PreemptionStats that the Core has not counted yet
    left: list[int]
    vacant: list[int]
    num_blocks: int
    free: Column  # int32 [free blocks], in the order of the free list
    cached: Column  # int32 [cached blocks], longest idle first
    digests: bytes  # 16 bytes for each cached block
    num_host_blocks: int
    host_free: Column  # int32 [host blocks], in the order of the free list
    done_copies: int
    swapped: tuple[int, int, float]  # blocks out and in, link time
    copy_time: tuple[float, float]
    reserve: tuple[float, float, float, float]
    trust: tuple[float, list[Pair]]  # as an older journal has it
    lengths: list[KindState] = []
    ageing: tuple[float, int, list[float]] | None = None  # none in an older journal
    verdicts: list[VerdictState] = []  # likewise
    backlogs_s: list[float] = []  # likewise
    drafts: list[float] = []  # likewise
    snapshots: SnapshotState | None = None  # none where no layer keeps states


def state_of(scheduler: Scheduler) -> SchedulerState:
    """The state of a resting scheduler."""
    admission, residency = scheduler.admission, scheduler.residency
    kv = scheduler.kv
    free, cached, digests = kv.pool.idle_state()
    space = residency.space
    host_free, _, _ = space.pool.idle_state()
    return SchedulerState(
        policy=scheduler.policy.name,
        step=scheduler.step,
        stats=astuple(admission.stats),
        left=list(admission.left),
        vacant=list(scheduler.slots.vacant),
        num_blocks=scheduler.kv.pool.num_blocks,
        free=free,
        cached=cached,
        digests=digests,
        num_host_blocks=space.pool.num_blocks,
        host_free=host_free,
        done_copies=space.done_step,
        swapped=(residency.num_out, residency.num_in, residency.link_s),
        copy_time=residency.copy_time.state(),
        reserve=residency.reserve.state(),
        trust=scheduler.order.trust.older(),
        lengths=scheduler.order.lengths.state(),
        ageing=scheduler.order.ageing.state(),
        backlogs_s=scheduler.order.start_bound.state(),
        verdicts=scheduler.order.trust.state(),
        drafts=scheduler.drafting.record.state(),
        snapshots=kv.snapshots.state() if isinstance(kv, SnapshotKV) else None,
    )


def restore(scheduler: Scheduler, state: SchedulerState, step_time: StepTimeModel) -> None:
    """Put a scheduler into a written state; it has the policy and memory of that size already."""
    admission = scheduler.admission
    scheduler.order.step_time = step_time
    scheduler.order.trust = _trust(state)
    scheduler.order.lengths = SeenLengths.restored(state.lengths)
    if state.ageing is not None:
        scheduler.order.ageing = Ageing.restored(state.ageing)
    scheduler.order.start_bound = StartBound.restored(scheduler.instance, state.backlogs_s)
    if state.drafts:
        scheduler.drafting.record = DraftRecord.restored(state.drafts)
    admission.step = state.step
    admission.stats = PreemptionStats(*state.stats)
    admission.left[:] = state.left
    scheduler.slots.vacant[:] = state.vacant
    kv = scheduler.kv
    kv.pool.restore_idle(state.free, state.cached, state.digests)
    if isinstance(kv, SnapshotKV) and state.snapshots is not None:
        kv.snapshots.restore(state.snapshots)
    _restore_residency(scheduler.residency, state)


def _trust(state: SchedulerState) -> PredictorTrust:
    if state.verdicts:
        return PredictorTrust.restored(state.verdicts)
    return PredictorTrust.of_older(state.trust)


def _restore_residency(residency: Residency, state: SchedulerState) -> None:
    space = residency.space
    space.pool.restore_idle(state.host_free, int32(), b"")
    space.done_step = state.done_copies
    residency.num_out, residency.num_in, residency.link_s = state.swapped
    residency.copy_time = CopyTime.restored(state.copy_time)
    residency.reserve = BurstReserve.restored(state.reserve)
