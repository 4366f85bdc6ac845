"""What the daemon says of itself: to viewers, to the API process, to systemd."""

import os
import time
from collections.abc import Callable

import msgspec

from daemon import __version__
from daemon.config.schema import Config
from daemon.control.server import RefusalError
from daemon.core.instance import WorkerState
from daemon.core.snapshot import Counters, InstanceStatus
from daemon.core.view import block_owners, snapshot, story
from daemon.models.generation import DefaultSampling
from daemon.protocol.api import Gauges, Serving
from daemon.protocol.control import (
    ApiStatus,
    AskStory,
    BlockOwners,
    Closer,
    GpuStatus,
    PredictorStatus,
    Snapshot,
    Story,
)
from daemon.protocol.worker import Fallback, Loading
from daemon.runtime.greeting import how_to_talk
from daemon.runtime.loads import CONVERSION, Loads
from daemon.runtime.model import ServedModel
from daemon.runtime.runtime import Runtime
from daemon.scheduler.policies import POLICIES
from daemon.wire.columns import int32

STUCK_S = 60.0
"""A worker that has had a step for so long, and for STUCK_STEPS of its steps, makes no progress."""
STUCK_STEPS = 20.0
_NO_API = "the API process starts"


class DaemonStatus:
    """Facts that change over the daemon's life, and the views made of them."""

    def __init__(self, config: Config, model: str) -> None:
        self.model = model
        self.url = ""
        self.stage = "starting"
        self.draining = False
        self.started = False  # the service manager was told that all is ready
        self.config = config
        self._served: ServedModel | None = None
        self._runtime: Runtime | None = None
        self.loads = Loads()
        self._fallbacks: dict[int, dict[str, str]] = {}  # by instance and family of kernels
        self._started_s = time.monotonic()
        self.gpus: Callable[[], tuple[GpuStatus | None, ...]] = tuple
        self.api: Callable[[], ApiStatus] = ApiStatus

    def begin(self, runtime: Runtime, served: ServedModel) -> None:
        """The model is known and the Core exists."""
        self._runtime = runtime
        self._served = served

    def loading(self, instance: int, progress: Loading) -> bool:
        """A worker reported progress; whether it is at another stage now."""
        another = self.loads.came(instance, progress)
        self.stage = self.loads.sentence()
        return another

    def fell_back(self, instance: int, fallback: Fallback) -> None:
        """A worker has torch compute what some of its kernels should."""
        self._fallbacks.setdefault(instance, {})[fallback.family] = fallback.why

    def lost(self, instance: int) -> None:
        """A worker died; another one begins anew, and finds out for itself what is trusted."""
        self.loads.lost(instance)
        self._fallbacks.pop(instance, None)

    @property
    def ready(self) -> bool:
        """Whether a first token is possible and new requests are taken."""
        if self._runtime is None or self.draining:
            return False
        return any(one.state is WorkerState.READY for one in self._runtime.core.instances)

    @property
    def serves(self) -> str:
        """What is served where, for `systemctl status`."""
        return f"{self.model} at {self.url}"

    def greeting(self) -> list[str]:
        """What is served where; the first time, also how to talk to it."""
        served = f"{self.model} is served at {self.url}"
        return [served, *([] if self.started else how_to_talk(self.url, self.config.server.page))]

    def stuck(self) -> str:
        """Why work that waits for a worker makes no progress, or nothing. Rest is no fault."""
        if self._runtime is None:
            return ""
        now = time.monotonic()
        for one in self._runtime.core.instances:
            if one.state is WorkerState.READY and len(one.scheduler.in_flight):
                silent_s = now - one.step_began_s
                if silent_s > max(STUCK_S, STUCK_STEPS * one.step_time.mean_s):
                    name = one.config.name
                    return f"worker {name} has not answered for {silent_s:.0f} s"
        return ""

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence that the model and the largest pool allow."""
        if self._served is None or self._runtime is None:
            return 0
        largest = max(one.capacity_tokens for one in self._runtime.core.instances)
        return min(self._served.max_len, largest or self._served.max_len)

    @property
    def sentence(self) -> str:
        """Where the daemon stands, for a person."""
        if self.draining:
            return "draining"
        return "ready" if self.ready else self.loads.sentence() or self.stage

    def serving(self) -> Serving:
        """What the API process must know."""
        served, runtime = self._served, self._runtime
        last_step_s = runtime.last_step_s if runtime is not None else -1.0
        return Serving(
            model=self.model,
            root=str(served.folder) if served is not None else "",
            ready=self.ready,
            draining=self.draining,
            max_len=self.max_len,
            context_len=served.shape.context_len if served is not None else 0,
            block_size=self.config.memory.block_size,
            vocab_size=served.shape.vocab_size if served is not None else 0,
            status=self.sentence,
            last_step_age_s=time.monotonic() - last_step_s if last_step_s >= 0.0 else -1.0,
            fault=self.stuck(),
            defaults=served.defaults if served is not None else DefaultSampling(),
        )

    def gauges(self, lag_s: float) -> Gauges | None:
        """What `/metrics` and `/status` show of the Core; None before there is one."""
        if self._runtime is None:
            return None
        core = self._runtime.core
        none = int32().astype("u1")
        return Gauges(
            counters=core.counters,
            waiting=core.num_waiting,
            instances=tuple(
                self._with_fallbacks(index, msgspec.structs.replace(one.status(), block_map=none))
                for index, one in enumerate(core.instances)
            ),
            lag_s=lag_s,
            gpus=self.gpus(),
            api_deaths=self.api().deaths,
            journal_dropped=self._runtime.journal_dropped,
            uptime_s=time.monotonic() - self._started_s,
        )

    def snapshot(self) -> Snapshot:
        """What every viewer sees, at this moment."""
        now = time.monotonic()
        served = self._served
        core = snapshot(self._runtime.core, now) if self._runtime is not None else None
        api = self.api()
        return Snapshot(
            version=__version__,
            pid=os.getpid(),
            uptime_s=now - self._started_s,
            time_s=now,
            status=self.sentence if api.up or not self.ready else _NO_API,
            ready=self.ready and api.up,
            draining=self.draining,
            url=self.url,
            model=self.model,
            root=str(served.folder) if served is not None else "",
            context_len=served.shape.context_len if served is not None else 0,
            max_len=self.max_len,
            block_size=self.config.memory.block_size,
            instances=tuple(self._with_progress(core.instances)) if core else self._planned(),
            sequences=core.sequences if core else (),
            running=core.running if core else 0,
            waiting=core.waiting if core else 0,
            counters=core.counters if core else Counters(),
            predictor=self._predictor(),
            policies=tuple(POLICIES),
            gpus=self.gpus(),
            api=api,
            journal_dropped=self._runtime.journal_dropped if self._runtime is not None else 0,
        )

    def look_closer(self, question: Closer) -> Story | BlockOwners:
        """What a viewer asks beyond the snapshot. Raises RefusalError for what is not there."""
        now = time.monotonic()
        if self._runtime is None:
            raise RefusalError(f"nothing can be told yet: {self.sentence}")
        core = self._runtime.core
        if isinstance(question, AskStory):
            return story(core, question.sequence, now)
        if not 0 <= question.instance < len(core.instances):
            raise RefusalError(f"there is no instance {question.instance}")
        return block_owners(core, question.instance, now)

    def _predictor(self) -> PredictorStatus:
        """What the API process last said of its predictor."""
        api = self._runtime.api if self._runtime is not None else None
        said = api.predictor if api is not None else None
        return said or PredictorStatus(kind=self.config.predict.kind)

    def _with_progress(self, instances: tuple[InstanceStatus, ...]) -> list[InstanceStatus]:
        """The instances, with how far their workers have loaded."""
        return [
            self._with_fallbacks(index, self.loads.shown(index, one))
            for index, one in enumerate(instances)
        ]

    def _with_fallbacks(self, index: int, one: InstanceStatus) -> InstanceStatus:
        """An instance's status with what torch computes in place of its kernels."""
        known = self._fallbacks.get(index)
        if not known:
            return one
        return msgspec.structs.replace(one, fallbacks=tuple(sorted(known.items())))

    def _planned(self) -> tuple[InstanceStatus, ...]:
        """The configured instances, before the Core exists."""
        policy = POLICIES[self.config.scheduler.policy]
        planned = [
            InstanceStatus(
                name=spec.name,
                role=spec.role,
                device=spec.device,
                state=WorkerState.LOADING.value,
                policy=policy.name,
                running=0,
                waiting=0,
                kv_blocks=0,
                kv_free=0,
                kv_held=0,
                kv_cached=0,
                kv_fenced=0,
                kv_block_bytes=0,
                block_map=int32().astype("u1"),
                steps_in_flight=0,
                steps=0,
                step_s=0.0,
                batch_rows=0,
                batch_tokens=0,
                load_stage=self.stage,
                load_fraction=0.0,
                swap=self.config.memory.swap or policy.swap,
            )
            for spec in self.config.instance
        ]
        return tuple(self.loads.shown(CONVERSION, one) for one in planned)
