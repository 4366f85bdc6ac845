"""An idle Core as plain values, so that a journal can begin in the middle of a daemon's life."""

import msgspec

from daemon.core.core import Core
from daemon.core.instance import Instance, WorkerState
from daemon.core.snapshot import Counters
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.scheduler.scheduler import Scheduler
from daemon.wire.columns import Column


class SchedulerState(msgspec.Struct, frozen=True, array_like=True):
    """A scheduler with no sequence and no step in flight: every block is free or cached."""

    step: int
    num_preemptions: int
    num_recomputed_tokens: int
    left: list[int]
    vacant: list[int]
    num_blocks: int
    free: Column  # int32 [free blocks], in the order of the free list
    cached: Column  # int32 [cached blocks], longest idle first
    digests: bytes  # 16 bytes for each cached block


class InstanceState(msgspec.Struct, frozen=True, array_like=True):
    """What an instance has learned, and whether its worker lives."""

    worker: str
    block_bytes: int
    last_done_s: float
    batch_rows: int
    newest_work: StepWork
    step_time: tuple[float, ...]
    scheduler: SchedulerState


class Checkpoint(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All that an idle Core's next actions depend on, besides its Configured."""

    now: float
    instances: list[InstanceState]
    counters: Counters
    arrivals: int
    draining: bool
    wake_at_s: float
    finish_rate: dict[str, float]


def checkpoint(core: Core, now: float) -> Checkpoint:
    """The Core's state at `now`. Raises ValueError unless it is idle."""
    if not core.idle:
        raise ValueError("only an idle Core can be written down")
    return Checkpoint(
        now=now,
        instances=[_instance(one) for one in core.instances],
        counters=msgspec.structs.replace(core.counters),
        arrivals=core.num_arrivals,
        draining=core.draining,
        wake_at_s=core.wake_at_s,
        finish_rate=dict(vars(core.finish_rate)),
    )


def restore(core: Core, state: Checkpoint) -> None:
    """Put a Core that was just built into a written state."""
    for instance, written in zip(core.instances, state.instances, strict=True):
        _restore_instance(instance, written)
    core.counters = msgspec.structs.replace(state.counters)
    core.num_arrivals = state.arrivals
    core.draining = state.draining
    core.wake_at_s = state.wake_at_s
    vars(core.finish_rate).update(state.finish_rate)


def _instance(instance: Instance) -> InstanceState:
    return InstanceState(
        worker=instance.state.value,
        block_bytes=instance.block_bytes,
        last_done_s=instance.last_done_s,
        batch_rows=instance.batch_rows,
        newest_work=instance.newest_work,
        step_time=instance.step_time.state(),
        scheduler=_scheduler(instance.scheduler),
    )


def _scheduler(scheduler: Scheduler) -> SchedulerState:
    free, cached, digests = scheduler.kv.pool.idle_state()
    return SchedulerState(
        step=scheduler.step,
        num_preemptions=scheduler.num_preemptions,
        num_recomputed_tokens=scheduler.num_recomputed_tokens,
        left=list(scheduler.left),
        vacant=list(scheduler.slots.vacant),
        num_blocks=scheduler.kv.pool.num_blocks,
        free=free,
        cached=cached,
        digests=digests,
    )


def _restore_instance(instance: Instance, state: InstanceState) -> None:
    written = state.scheduler
    instance.ready(written.num_blocks, state.block_bytes, 0.0)
    instance.state = WorkerState(state.worker)
    instance.last_done_s = state.last_done_s
    instance.batch_rows = state.batch_rows
    instance.newest_work = state.newest_work
    instance.step_time = StepTimeModel.restored(state.step_time)
    scheduler = instance.scheduler
    scheduler.step = written.step
    scheduler.num_preemptions = written.num_preemptions
    scheduler.num_recomputed_tokens = written.num_recomputed_tokens
    scheduler.left[:] = written.left
    scheduler.slots.vacant[:] = written.vacant
    scheduler.kv.pool.restore_idle(written.free, written.cached, written.digests)
