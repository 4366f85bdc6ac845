"""The daemon's status for viewers, the API process and systemd, before its model is known."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from daemon import __version__
from daemon.base import logs, notify
from daemon.config.instance_text import placed
from daemon.config.instances import instance_limits
from daemon.config.load import Loaded
from daemon.config.schema import Config, InstanceSpec
from daemon.control.orders import RefusalError
from daemon.core.instance.instance import WorkerState
from daemon.core.values.actions import Rejected
from daemon.core.values.events import Event, RequestArrived
from daemon.core.values.snapshot import CoreSnapshot, Counters, InstanceStatus
from daemon.protocol.api import Serving
from daemon.protocol.control import ApiStatus, BlockOwners, Closer, PredictorStatus, Snapshot, Story
from daemon.protocol.plan import PlanStatus
from daemon.runtime.api_link import ApiLink
from daemon.runtime.life import Life
from daemon.runtime.loads import CONVERSION, Loads
from daemon.runtime.model import served_name
from daemon.runtime.power import PowerCaps
from daemon.runtime.runtime import Runtime
from daemon.scheduler.policies import POLICIES
from daemon.state.role import Role
from daemon.supervisor.api import ApiProcess
from daemon.wire.columns import no_cells

_NO_API = "the API process starts"


log = logging.getLogger(__name__)

DRAW_S = 0.25
LOG_S = 10.0
"""Interval at which a log without a terminal shows the start's progress, beside each new stage."""


@dataclass
class Parts:
    """The parts that need no model: they exist from the daemon's first moment to its last."""

    loaded: Loaded  # the configuration as it is now
    life: Life
    api: ApiProcess
    link: ApiLink
    loads: Loads = field(default_factory=Loads)
    began_s: float = field(default_factory=time.monotonic)
    plan: PlanStatus = field(default_factory=PlanStatus)  # as the planner process told it last

    @property
    def config(self) -> Config:
        """The values of the configuration."""
        return self.loaded.config


class DaemonStatus:
    """Status and behaviour while the model is not known yet: there is no Core to ask."""

    started = False  # whether the service manager heard that all is ready

    def __init__(self, parts: Parts, url: str = "") -> None:
        self.model = served_name(parts.config)
        self.url = url
        self.dispatch: Callable[[Event], None] = self._reject  # takes the API process's events
        self._parts = parts
        self._loads = parts.loads

    @property
    def draining(self) -> bool:
        """Whether requests are refused until an operator resumes, or for ever."""
        return self._parts.life.stop.is_set()

    @property
    def ready(self) -> bool:
        """Whether a first token is possible and new requests are taken."""
        return False

    @property
    def serves(self) -> str:
        """The model and its address, for `systemctl status`."""
        return f"{self.model} at {self.url}"

    @property
    def sentence(self) -> str:
        """The daemon's state, for a person."""
        if self.draining:
            return "draining"
        return "ready" if self.ready else self._loads.sentence() or self._loads.stage

    def runtime(self, refusal: str) -> Runtime:
        """The Core's driver. Raises RefusalError while there is none."""
        self._refuse(refusal)

    def power(self, refusal: str) -> PowerCaps:
        """The keeper of the power limits. Raises RefusalError while there is none."""
        self._refuse(refusal)

    def look_closer(self, question: Closer) -> Story | BlockOwners:
        """Answer a viewer's question beyond the snapshot. Raises RefusalError for what does not
        exist.
        """
        self._refuse("nothing can be told yet")

    def reconfigured(self, changed: set[str]) -> None:
        """Apply the new values of these dotted keys; here nothing: the Core will be built with
        them.
        """

    def stuck(self) -> str:
        """Why work that waits for a worker makes no progress, or "". Being idle is no fault."""
        return ""

    def announce(self) -> None:
        """Say to the log and to the service manager that requests are served, if they are."""

    def converts(self, share: float) -> None:
        """A GGUF file is converted up to this share."""
        if self._loads.converts(share):
            self.tell_stage()

    def tell(self) -> None:
        """Send the API process the current status."""
        self._parts.link.send(self.serving())

    def tell_stage(self) -> None:
        """Tell the service manager too, and ask it for more time."""
        notify.starting(self.sentence)
        self.tell()

    def serving(self) -> Serving:
        """The status for the API process."""
        return Serving(
            model=self.model,
            root="",
            ready=self.ready,
            draining=self.draining,
            max_len=0,
            context_len=0,
            block_size=self._parts.config.memory.block_size,
            vocab_size=0,
            status=self.sentence,
        )

    def snapshot(self) -> Snapshot:
        """The snapshot for every viewer, at this moment."""
        now, config, api = time.monotonic(), self._parts.config, self._parts.api
        core = self._core(now)
        return Snapshot(
            version=__version__,
            pid=os.getpid(),
            uptime_s=now - self._parts.began_s,
            time_s=now,
            status=self.sentence if api.up or not self.ready else _NO_API,
            ready=self.ready and api.up,
            draining=self.draining,
            url=self.url,
            model=self.model,
            root="",
            context_len=0,
            max_len=0,
            block_size=config.memory.block_size,
            instances=core.instances,
            sequences=core.sequences,
            running=core.running,
            waiting=core.waiting,
            counters=core.counters,
            predictor=PredictorStatus(kind=config.predict.kind),
            policies=tuple(POLICIES),
            api=ApiStatus(api.up, api.num_deaths),
            transfers=core.transfers,
            flips=core.flips,
            placement=config.scheduler.placement,
            compress=config.memory.compress,
            roles=core.roles,
            plan=self._parts.plan,
            due=core.due,
        )

    def _core(self, now: float) -> CoreSnapshot:
        """The instances as they are configured, in place of a Core."""
        planned = map(self._planned, self._parts.config.instance)
        shown = tuple(self._loads.shown(CONVERSION, status) for status in planned)
        return CoreSnapshot(
            instances=shown,
            sequences=(),
            running=0,
            waiting=0,
            draining=self.draining,
            counters=Counters(),
        )

    def _planned(self, spec: InstanceSpec) -> InstanceStatus:
        limits = instance_limits(self._parts.config, spec)
        return InstanceStatus(
            name=spec.name,
            role=Role(spec.role),
            device=placed(spec),
            state=WorkerState.LOADING.value,
            policy=limits.policy,
            running=0,
            waiting=0,
            kv_blocks=0,
            kv_free=0,
            kv_held=0,
            kv_cached=0,
            kv_fenced=0,
            kv_block_bytes=0,
            block_map=no_cells(),
            steps_in_flight=0,
            steps=0,
            step_s=0.0,
            batch_rows=0,
            batch_tokens=0,
            load_stage=self._loads.stage,
            load_fraction=0.0,
            swap=limits.swap or POLICIES[limits.policy].swap,
        )

    def _reject(self, event: Event) -> None:
        if isinstance(event, RequestArrived):
            refusal = Rejected(event.request, "not_ready", self.sentence, 1.0)
            self._parts.link.rejected(refusal)

    def _refuse(self, what: str) -> NoReturn:
        raise RefusalError(f"{what}: {self.sentence}")


async def show_start(loads: Loads, phase: Callable[[], DaemonStatus]) -> None:
    """Show the progress of the start until all is ready, or the daemon is told to stop."""
    loop = asyncio.get_running_loop()
    logged_s = loop.time()
    try:
        while not (phase().started or phase().draining):
            logs.show(loads.bar() or loads.stage)
            if not logs.shows() and loop.time() - logged_s >= LOG_S:
                logged_s = loop.time()
                log.info("%s", phase().sentence)
            await asyncio.sleep(DRAW_S)
    finally:
        logs.show("")
