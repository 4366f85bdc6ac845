"""The daemon's status once its model is known: there is a Core with workers."""

import logging
import time
from collections.abc import Callable
from operator import sub

import msgspec

from daemon.base import notify
from daemon.config.instance_text import num_ranks
from daemon.control.orders import RefusalError
from daemon.core.instance.instance import WorkerState
from daemon.core.values.snapshot import (
    CoreSnapshot,
    ExpertStatus,
    InstanceStatus,
    RankStatus,
    StageStatus,
)
from daemon.core.view.view import block_owners, snapshot, story
from daemon.protocol.api import Gauges, Serving
from daemon.protocol.control import AskStory, BlockOwners, Closer, Snapshot, Story
from daemon.protocol.worker import ExpertsUsed, Fallback, Ready, StagesWorked
from daemon.runtime.gpus import GpuWatch
from daemon.runtime.greeting import how_to_talk, what_serves
from daemon.runtime.model import ServedModel
from daemon.runtime.power import PowerCaps
from daemon.runtime.runtime import Runtime
from daemon.runtime.status import DaemonStatus, Parts
from daemon.wire.columns import no_cells

log = logging.getLogger(__name__)

STUCK_S = 60.0
"""A worker without an answer for STUCK_S, and for STUCK_STEPS of its steps, makes no progress."""
STUCK_STEPS = 20.0


class ServingStatus(DaemonStatus):
    """Status and behaviour while there is a Core to ask."""

    def __init__(
        self,
        parts: Parts,
        url: str,
        model: ServedModel,
        runtime: Runtime,
        gpus: GpuWatch,
        power: PowerCaps | None = None,
        processes: Callable[[int], tuple[str, tuple[RankStatus, ...]]] = lambda _instance: ("", ()),
    ) -> None:
        """`processes(instance)`: the node on which Ray placed it, and its ranks, if it has any."""
        super().__init__(parts, url)
        self.dispatch = runtime.dispatch
        self._served = model
        self._runtime = runtime
        self._gpus = gpus
        self._power = power
        self._processes = processes
        self._experts: dict[int, ExpertsUsed] = {}  # by instance
        self._stages: dict[int, StageStatus] = {}  # likewise
        self._fallbacks: dict[int, dict[str, str]] = {}  # by instance and family of kernels

    @property
    def draining(self) -> bool:
        """Whether the Core refuses requests."""
        return self._runtime.core.draining

    @property
    def ready(self) -> bool:
        """Whether a worker is ready, and the Core takes requests."""
        if self.draining:
            return False
        return any(instance.state is WorkerState.READY for instance in self._runtime.core.instances)

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence that the model and the largest pool allow."""
        largest = max(instance.capacity_tokens for instance in self._runtime.core.instances)
        return min(self._served.max_len, largest or self._served.max_len)

    def runtime(self, refusal: str) -> Runtime:
        """The Core's driver."""
        return self._runtime

    def power(self, refusal: str) -> PowerCaps:
        """The keeper of the power limits."""
        return self._power or super().power(refusal)

    def reconfigured(self, changed: set[str]) -> None:
        """Pass changed values on to the Core."""
        config, core = self._parts.config, self._runtime.core
        if "scheduler.policy" in changed:
            own = {spec.name for spec in config.instance if spec.policy}
            rest = [
                i for i, instance in enumerate(core.config.instances) if instance.name not in own
            ]
            for index in rest if own else (-1,):
                self._runtime.choose_policy(config.scheduler.policy, index)
        if "scheduler.placement" in changed:
            self._runtime.choose_placement(config.scheduler.placement)
        self._runtime.prompt_lookup = config.scheduler.prompt_lookup
        limits = "max_waiting", "starve_s", "max_pause_s", "handoff", "pair", "mixed_pool"
        if changed & {f"scheduler.{name}" for name in limits}:
            self._runtime.reconfigure(config.scheduler)

    def fell_back(self, instance: int, fallback: Fallback) -> None:
        """A worker lets torch compute what some of its kernels should."""
        self._fallbacks.setdefault(instance, {})[fallback.family] = fallback.why

    def used_experts(self, instance: int, used: ExpertsUsed) -> None:
        """A worker tells where its experts lie, and which were chosen."""
        self._experts[instance] = used

    def stages_worked(self, instance: int, worked: StagesWorked) -> None:
        """A worker tells when its pipeline stages computed."""
        before = self._stages.get(instance)
        steps_s, computed_s = worked.steps_s, worked.computed_s
        self._stages[instance] = StageStatus(
            steps_s=steps_s,
            computed_s=computed_s,
            newest_s=steps_s - before.steps_s if before else steps_s,
            newest_computed_s=(
                tuple(map(sub, computed_s, before.computed_s)) if before else computed_s
            ),
        )

    def tell_room(self, instance: int, ready: Ready) -> None:
        """Log the room of an instance that is ready."""
        home = self._runtime.core.instances[instance]
        max_len = min(self._served.max_len, home.capacity_tokens)
        spec = self._served.instances[instance]
        text = what_serves(
            spec.name,
            ready,
            num_tokens=home.kv.pool_tokens_at(max_len),
            max_len=max_len,
            max_running=home.limits.max_running,
            num_ranks=num_ranks(spec),
        )
        log.info("%s", text)

    def lost(self, instance: int) -> None:
        """A worker died; its successor begins anew, and tests its kernels itself."""
        self._loads.lost(instance)
        self._fallbacks.pop(instance, None)
        self._experts.pop(instance, None)
        self._stages.pop(instance, None)

    def announce(self) -> None:
        """Log that requests are served, if they are; the first time, also how to talk to it."""
        if not self.ready:
            return
        log.info("%s is served at %s", self.model, self.url)
        if not self.started:
            config = self._parts.config
            for line in how_to_talk(self.url, config.server.page, config.control.socket):
                log.info("%s", line)
        self.started = True
        notify.ready(self.serves)

    def stuck(self) -> str:
        """The worker that has not answered for long, in words."""
        now = time.monotonic()
        for instance in self._runtime.core.instances:
            if instance.state is WorkerState.READY and len(instance.scheduler.in_flight):
                silent_s = now - instance.step_began_s
                if silent_s > max(STUCK_S, STUCK_STEPS * instance.step_time.mean_s):
                    name = instance.config.name
                    return f"worker {name} has not answered for {silent_s:.0f} s"
        return ""

    def serving(self) -> Serving:
        """The status for the API process, with the model."""
        last_step_s = self._runtime.last_step_s
        return msgspec.structs.replace(
            super().serving(),
            root=str(self._served.folder),
            max_len=self.max_len,
            context_len=self._served.shape.context_len,
            vocab_size=self._served.shape.vocab_size,
            last_step_age_s=time.monotonic() - last_step_s if last_step_s >= 0.0 else -1.0,
            fault=self.stuck(),
            defaults=self._served.defaults,
        )

    def gauges(self, lag_s: float) -> Gauges:
        """The Core's figures for `/metrics` and `/status`."""
        core, no_map = self._runtime.core, no_cells()
        return Gauges(
            counters=core.counters,
            waiting=core.num_waiting,
            instances=tuple(
                self._completed(
                    index,
                    msgspec.structs.replace(
                        instance.status(), block_map=no_map, by_kind=msgspec.UNSET
                    ),
                )
                for index, instance in enumerate(core.instances)
            ),
            lag_s=lag_s,
            gpus=self._gpus.latest,
            api_deaths=self._parts.api.num_deaths,
            journal_dropped=self._runtime.journal_dropped,
            uptime_s=time.monotonic() - self._parts.began_s,
        )

    def snapshot(self) -> Snapshot:
        """The snapshot for every viewer, with the model and its devices."""
        known = super().snapshot()
        return msgspec.structs.replace(
            known,
            root=str(self._served.folder),
            context_len=self._served.shape.context_len,
            max_len=self.max_len,
            predictor=self._parts.link.predictor or known.predictor,
            gpus=self._gpus.latest,
            placement=self._runtime.core.config.placement,
            journal_dropped=self._runtime.journal_dropped,
        )

    def look_closer(self, question: Closer) -> Story | BlockOwners:
        """A sequence's story, or the owners of an instance's blocks."""
        now, core = time.monotonic(), self._runtime.core
        if isinstance(question, AskStory):
            return story(core, question.sequence, now)
        if not 0 <= question.instance < len(core.instances):
            raise RefusalError(f"there is no instance {question.instance}")
        return block_owners(core, question.instance, now)

    def _core(self, now: float) -> CoreSnapshot:
        """The Core, with its workers' load progress and each sequence's client."""
        core = snapshot(self._runtime.core, now)
        instances = tuple(
            self._completed(index, self._loads.shown(index, status))
            for index, status in enumerate(core.instances)
        )
        link = self._parts.link
        sequences = tuple(
            msgspec.structs.replace(sequence, **link.client_of(sequence.sequence)._asdict())
            for sequence in core.sequences
        )
        return msgspec.structs.replace(core, instances=instances, sequences=sequences)

    def _completed(self, index: int, status: InstanceStatus) -> InstanceStatus:
        """Complete an instance's status by what the Core does not know: its slowest steps, the
        kernels that torch replaces, its node, its ranks, where its experts lie, when its stages
        compute, and the power of its card.
        """
        known = self._fallbacks.get(index, {})
        p99_s = self._runtime.recent_steps[index].p99_s(time.monotonic())
        power = self._power.figures(index)._asdict() if self._power else {}
        node, ranks = self._processes(index)
        used = self._experts.get(index)
        experts = ExpertStatus(**msgspec.structs.asdict(used)) if used else msgspec.UNSET
        return msgspec.structs.replace(
            status,
            step_p99_s=p99_s,
            fallbacks=tuple(sorted(known.items())),
            node=node or msgspec.UNSET,
            ranks=ranks,
            experts=experts,
            stages=self._stages.get(index, msgspec.UNSET),
            **power,
        )
