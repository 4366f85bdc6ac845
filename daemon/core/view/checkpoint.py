"""An idle Core as plain values, so that a journal can begin in the middle of a daemon's life."""

from copy import deepcopy

import msgspec

from daemon.core.core import Core
from daemon.core.instance.instance import Instance, WorkerState
from daemon.core.migration.flips import FlipState
from daemon.core.placing.asleep import AsleepState
from daemon.core.roles.watcher import WatcherState
from daemon.core.values.events import WorkerReady
from daemon.core.values.snapshot import Counters
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.scheduler import checkpoint as scheduler_checkpoint
from daemon.scheduler.checkpoint import SchedulerState
from daemon.state.role import Role


class InstanceState(msgspec.Struct, frozen=True, array_like=True):
    """An idle instance's state: whether its worker lives, and what it has learned."""

    worker: str
    block_bytes: int
    step_began_s: float
    batch_rows: int
    newest_work: StepWork
    step_time: tuple[float, ...]
    scheduler: SchedulerState
    alone: tuple[float, float] = (0.0, 0.0)  # of the step times; unknown in an older journal
    forward_tokens: int = 0  # of its worker; likewise
    same_until: tuple[int, ...] = ()  # likewise
    most_times: int = 1  # likewise
    windows: tuple[int, ...] = ()  # likewise
    kinds: tuple[str, ...] = ()  # likewise
    state_pages: int = 0  # likewise
    chosen_budget: int = 0  # likewise: by no operator


class Checkpoint(msgspec.Struct, frozen=True, tag="Checkpoint", array_like=True):
    """An idle Core's state: with its `Configured`, all that its next actions depend on."""

    now: float
    instances: list[InstanceState]
    counters: Counters
    arrivals: int
    draining: bool
    wake_at_s: float
    finish_rate: dict[str, float]
    max_waiting: int = 0  # 0, in an older journal: as configured
    starve_s: float = 0.0  # likewise
    max_pause_s: float = 0.0  # likewise
    roles: list[tuple[Role, bool]] = []  # by instance, with whether it is drained; likewise
    links: list[tuple[int, int, bool, int]] = []  # ends that are up
    num_transfers: int = 0  # ever ordered
    num_flips: int = 0
    link_times: list[tuple[int, int, tuple[float, ...]]] = []  # learned times of links
    placement: str = ""  # "", in an older journal: as configured
    watcher: WatcherState | None = None  # None, in an older journal: nothing observed yet
    flips: list[FlipState] = []  # not over; missing in an older journal
    handoff: str = ""  # "", in an older journal: as configured
    asleep: AsleepState | None = None  # None, in an older journal: none was asleep


def checkpoint(core: Core, now: float) -> Checkpoint:
    """The Core's state at `now`. Raises ValueError unless it is idle."""
    if not core.idle:
        raise ValueError("only an idle Core can be written down")
    return Checkpoint(
        now=now,
        instances=[_instance(instance) for instance in core.instances],
        counters=msgspec.structs.replace(core.counters),
        arrivals=core.num_arrivals,
        draining=core.draining,
        wake_at_s=core.wake_at_s,
        finish_rate=dict(vars(core.finish_rate)),
        max_waiting=core.config.max_waiting,
        starve_s=core.config.starve_s,
        max_pause_s=core.config.max_pause_s,
        roles=[(instance.role, instance.drained) for instance in core.instances],
        links=core.migrator.transfers.links.state(),
        num_transfers=core.migrator.transfers.num_ordered,
        num_flips=core.migrator.flips.count,
        link_times=core.migrator.transfers.links.learned(),
        placement=core.config.placement,
        watcher=core.watcher.state() if core.watcher.is_known else None,
        flips=core.migrator.flips.state(),
        handoff=core.config.handoff,
        asleep=deepcopy(core.dispatch.asleep.state),
    )


def restore(core: Core, state: Checkpoint) -> None:
    """Put a new Core into the state of a checkpoint."""
    for instance, written in zip(core.instances, state.instances, strict=True):
        _restore_instance(instance, written)
    core.counters = msgspec.structs.replace(state.counters)
    core.num_arrivals = state.arrivals
    core.draining = core.emptied = state.draining
    core.wake_at_s = state.wake_at_s
    vars(core.finish_rate).update(state.finish_rate)
    core.config = msgspec.structs.replace(
        core.config,
        max_waiting=state.max_waiting or core.config.max_waiting,
        starve_s=state.starve_s or core.config.starve_s,
        max_pause_s=state.max_pause_s or core.config.max_pause_s,
        placement=state.placement or core.config.placement,
        handoff=state.handoff or core.config.handoff,
    )
    core.migrator.reconfigure(core.config)
    core.dispatch.use(core.config.placement)
    for instance in core.instances:
        instance.reconfigure(core.config)
    for instance, (role, drained) in zip(core.instances, state.roles, strict=False):
        instance.give_role(role)
        instance.drained = drained
    core.migrator.transfers.links.restore(state.links)
    core.migrator.transfers.links.restore_times(state.link_times)
    core.migrator.transfers.num_ordered = state.num_transfers
    core.migrator.flips.restore(state.num_flips, state.flips)
    if state.watcher is not None:
        core.watcher.restore(state.watcher)
    if state.asleep is not None:
        core.dispatch.asleep.restore(deepcopy(state.asleep))
    core.rest()  # as an idle Core does: plans asked for depend on the time


def _instance(instance: Instance) -> InstanceState:
    return InstanceState(
        worker=instance.state.value,
        block_bytes=instance.block_bytes,
        step_began_s=instance.step_began_s,
        batch_rows=instance.batch_rows,
        newest_work=instance.newest_work,
        step_time=instance.step_time.state(),
        scheduler=scheduler_checkpoint.state_of(instance.scheduler),
        alone=instance.step_time.alone,
        forward_tokens=instance.forward_tokens,
        same_until=instance.same_until,
        most_times=instance.most_times,
        windows=instance.windows,
        kinds=instance.kinds,
        state_pages=instance.state_pages,
        chosen_budget=instance.chosen_budget,
    )


def _restore_instance(instance: Instance, state: InstanceState) -> None:
    written = state.scheduler
    num_blocks, num_host_blocks = written.num_blocks, written.num_host_blocks
    said = WorkerReady(
        now=0.0,
        instance=instance.index,
        num_blocks=num_blocks,
        block_bytes=state.block_bytes,
        step_s=0.0,
        num_host_blocks=num_host_blocks,
    )
    names = ("forward_tokens", "same_until", "most_times", "windows", "kinds", "state_pages")
    known = {name: getattr(state, name) for name in names}
    instance.ready(msgspec.structs.replace(said, **known))
    instance.state = WorkerState(state.worker)
    instance.update_due()
    instance.step_began_s = state.step_began_s
    instance.batch_rows = state.batch_rows
    instance.newest_work = state.newest_work
    instance.set_policy(written.policy, 0.0)
    instance.set_budget(state.chosen_budget)
    step_time = StepTimeModel.restored(state.step_time, state.alone)
    scheduler_checkpoint.restore(instance.scheduler, written, step_time)
