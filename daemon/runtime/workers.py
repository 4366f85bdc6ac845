"""The worker processes of a model's instances, and the reactions to their messages and deaths."""

import asyncio
import logging

from daemon.base.garbage import settle
from daemon.config.cluster import by_ray
from daemon.config.instance_text import rank_devices
from daemon.protocol.worker import Loading, Ready
from daemon.runtime.loads import Loads, describe
from daemon.runtime.model import ServedModel
from daemon.runtime.runtime import Runtime
from daemon.runtime.serving import ServingStatus
from daemon.runtime.start_times import StartTimes, start_name
from daemon.runtime.status import Parts
from daemon.supervisor.early import EarlyWorker
from daemon.supervisor.proxy import ClusterOrder
from daemon.supervisor.spare import Spare
from daemon.supervisor.worker import WorkerHooks, WorkerProcess

log = logging.getLogger(__name__)


class Workers:
    """One worker per instance, and their spare, between `start` and `close`."""

    def __init__(
        self,
        parts: Parts,
        model: ServedModel,
        times: StartTimes,
        runtime: Runtime,
        status: ServingStatus,
        early: EarlyWorker,
    ) -> None:
        config = parts.config
        self._life = parts.life
        self._loads: Loads = parts.loads
        self._model = model
        self._runtime = runtime
        self._status = status
        self._num_given_up = 0
        self._spare, cluster = None, None
        if by_ray(config):
            cluster = ClusterOrder(config.cluster.address, config.daemon.threads)
        elif config.daemon.spare:
            self._spare = Spare(rank_devices(model.instances[0])[0])
        hooks = WorkerHooks(
            loading=self._loading,
            ready=self._ready,
            reply=runtime.reply,
            lost=self._lost,
            hopeless=self._hopeless,
            copied=runtime.copied,
            fallback=status.fell_back,
            experts=status.used_experts,
            stages=status.stages_worked,
            link_state=runtime.links.state,
            transfer_over=runtime.links.over,
        )
        loads = [model.loads(config, index) for index in range(len(model.instances))]
        self._processes = [
            WorkerProcess(
                *(
                    index,
                    model.instances[index].name,
                    first,
                    hooks,
                    config.daemon.restarts,
                    self._spare,
                ),
                early if index == 0 else None,
                others,
                cluster,
            )
            for index, (first, *others) in enumerate(loads)
        ]
        parts.loads.remember(times, [start_name(first) for first, *_ in loads])

    def start(self) -> None:
        """Start every worker of an instance that is not asleep, and again whenever it dies."""
        for process, cores in zip(self._processes, self._model.cores, strict=True):
            log.debug("instance %s: %s (%s)", process.name, cores, cores.why)
            if not self._model.instances[process.instance].asleep:
                self._life.spawn(process.run())

    def wake(self, instance: int) -> None:
        """Start the worker of an instance that was asleep."""
        process = self._processes[instance]
        log.info("instance %s wakes: the others have no room", process.name)
        self._life.spawn(process.run())

    def of(self, instance: int) -> WorkerProcess:
        """The worker process of an instance."""
        return self._processes[instance]

    async def close(self) -> None:
        """End them all."""
        await asyncio.gather(*(process.close() for process in self._processes))
        if self._spare is not None:
            await self._spare.close()

    def _loading(self, instance: int, progress: Loading) -> None:
        if self._loads.came(instance, progress):
            log.debug("%s", self._loads.stage)
        self._status.tell_stage()

    def _ready(self, instance: int, ready: Ready) -> None:
        self._runtime.worker_ready(instance, ready)
        for line in describe(ready, self._loads.ended(instance)):
            log.debug("worker %s: %s", self._processes[instance].name, line)
        self._status.tell_room(instance, ready)
        if self._spare is not None:
            self._life.spawn(self._spare.prepare())
        settle()
        self._status.tell()
        self._status.announce()

    def _lost(self, instance: int, blamed: bool) -> None:
        self._status.lost(instance)
        self._runtime.worker_lost(instance, blamed)
        self._status.tell()

    def _hopeless(self, instance: int, why: str) -> None:
        """Give up a lost worker. Others serve on; without any the daemon ends."""
        self._num_given_up += 1
        if self._num_given_up == len(self._processes):
            self._life.hopeless(why)
        else:
            log.error("%s: its instance is given up, the others serve on", why)
            self._runtime.given_up(instance)
            self._status.tell()
