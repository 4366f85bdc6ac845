"""An idle Core as plain values, so that a journal can begin in the middle of a daemon's life."""

from dataclasses import astuple

import msgspec

from daemon.core.core import Core
from daemon.core.events import WorkerReady
from daemon.core.instance import Instance, WorkerState
from daemon.core.snapshot import Counters
from daemon.cost.copy_time import CopyTime
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.memory.reserve import BurstReserve
from daemon.scheduler.moves import Moves
from daemon.scheduler.residency import Residency
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.trust import Trust
from daemon.wire.columns import Column, int32


class SchedulerState(msgspec.Struct, frozen=True, array_like=True):
    """A scheduler with no sequence and no step in flight: every block is free or cached."""

    policy: str
    step: int
    moves: tuple[int, int, int, int]  # counted, not yet among the counters
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
    trust: tuple[float, list[tuple[int, int]]]


class InstanceState(msgspec.Struct, frozen=True, array_like=True):
    """What an instance has learned, and whether its worker lives."""

    worker: str
    block_bytes: int
    last_done_s: float
    batch_rows: int
    newest_work: StepWork
    step_time: tuple[float, ...]
    scheduler: SchedulerState


class Checkpoint(msgspec.Struct, frozen=True, tag="Checkpoint", array_like=True):
    """All that an idle Core's next actions depend on, besides its Configured."""

    now: float
    instances: list[InstanceState]
    counters: Counters
    arrivals: int
    draining: bool
    wake_at_s: float
    finish_rate: dict[str, float]
    max_waiting: int = 0  # 0, in an older journal: as configured
    starve_s: float = 0.0  # likewise


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
        max_waiting=core.config.max_waiting,
        starve_s=core.config.starve_s,
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
    core.config = msgspec.structs.replace(
        core.config,
        max_waiting=state.max_waiting or core.config.max_waiting,
        starve_s=state.starve_s or core.config.starve_s,
    )
    for instance in core.instances:
        instance.reconfigure(core.config)


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
    seats, residency = scheduler.seats, scheduler.residency
    free, cached, digests = scheduler.kv.pool.idle_state()
    space = residency.space
    host_free, _, _ = space.pool.idle_state()
    return SchedulerState(
        policy=scheduler.policy.name,
        step=seats.step,
        moves=astuple(seats.moves),
        left=list(seats.left),
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
        trust=seats.trust.state(),
    )


def _restore_instance(instance: Instance, state: InstanceState) -> None:
    written = state.scheduler
    num_blocks, num_host_blocks = written.num_blocks, written.num_host_blocks
    said = (0.0, instance.index, num_blocks, state.block_bytes, 0.0, num_host_blocks)
    instance.ready(WorkerReady(*said))
    instance.state = WorkerState(state.worker)
    instance.last_done_s = state.last_done_s
    instance.batch_rows = state.batch_rows
    instance.newest_work = state.newest_work
    scheduler = instance.scheduler
    instance.choose(written.policy, 0.0)
    seats = scheduler.seats
    seats.pace = StepTimeModel.restored(state.step_time)
    seats.step = written.step
    seats.moves = Moves(*written.moves)
    seats.left[:] = written.left
    seats.trust = Trust.restored(written.trust)
    scheduler.slots.vacant[:] = written.vacant
    scheduler.kv.pool.restore_idle(written.free, written.cached, written.digests)
    _restore_residency(scheduler.residency, written)


def _restore_residency(residency: Residency, written: SchedulerState) -> None:
    space = residency.space
    space.pool.restore_idle(written.host_free, int32(), b"")
    space.done_step = written.done_copies
    residency.num_out, residency.num_in, residency.link_s = written.swapped
    residency.copy_time = CopyTime.restored(written.copy_time)
    residency.reserve = BurstReserve.restored(written.reserve)
