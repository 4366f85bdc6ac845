"""The daemon's life: start, serve, drain. It reads from top to bottom as it happens."""

import asyncio
import contextlib
import faulthandler
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from daemon.base import logs, notify
from daemon.cluster.nodes import MISSING, has_ray
from daemon.config.cluster import by_ray
from daemon.config.cuda import DeviceError, likely_kind
from daemon.config.instance_text import rank_devices
from daemon.config.load import Loaded
from daemon.config.paths import default_journal, default_predictions, default_socket
from daemon.config.schema import Config
from daemon.control.server import ControlServer
from daemon.core.values.events import Configured
from daemon.journal.writer import JournalWriter
from daemon.memory.sizing import SizingError
from daemon.models.shape import ModelError
from daemon.protocol.plan import PlanStatus
from daemon.runtime.api_link import ApiLink
from daemon.runtime.gpus import GpuWatch
from daemon.runtime.life import Life, feed_watchdog
from daemon.runtime.listen import ListenError, listen, url_of
from daemon.runtime.model import (
    ServedModel,
    cache_folder,
    find_model,
    model_in_words,
    served_name,
)
from daemon.runtime.operations import Operations
from daemon.runtime.power import PowerCaps
from daemon.runtime.preflight import shortfalls
from daemon.runtime.runtime import Runtime, ToWorkers
from daemon.runtime.serving import ServingStatus
from daemon.runtime.start_times import StartTimes
from daemon.runtime.status import DaemonStatus, Parts, show_start
from daemon.runtime.threads import on_loop
from daemon.runtime.token_store import TokenStore
from daemon.runtime.workers import Workers
from daemon.supervisor.api import ApiProcess
from daemon.supervisor.early import EarlyWorker
from daemon.supervisor.planner import PlannerProcess
from daemon.supervisor.spare import worker_module
from daemon.wire.faults import FaultError, faults

log = logging.getLogger(__name__)

SERVING_INTERVAL_S = 2.0
GAUGES_INTERVAL_S = 1.0


def run(loaded: Loaded, read: Callable[[], Loaded]) -> int:
    """Serve until a signal or a hopeless fault; the exit status.

    `read` reads the configuration anew, on SIGHUP and `llmd ctl reload`; it may raise ConfigError.
    """
    level, form = loaded.config.daemon.log_level, loaded.config.daemon.log_format
    logs.set_up("daemon", level, form)
    faulthandler.enable()  # an abort by systemd's watchdog leaves the stacks in the log
    try:
        faults()  # refused here, not in every process
        worker_module()
        if by_ray(loaded.config) and not has_ray():
            raise DeviceError(MISSING)
        return uvloop.run(Daemon(loaded, read).run())
    except (ListenError, DeviceError, ModelError, SizingError, FaultError, OSError) as error:
        log.error("%s", error)
        return 1


class Daemon:
    """The daemon from start to end. Answers and actions depend on its current `phase`."""

    def __init__(self, loaded: Loaded, read: Callable[[], Loaded]) -> None:
        config = loaded.config
        self.life = life = Life()
        self._store = TokenStore(config.memory.block_size)
        api = ApiProcess(
            _api_config(config), self._api_started, life.hopeless, config.daemon.restarts
        )
        link = ApiLink(self._store, lambda event: self.phase.dispatch(event), api.lives)
        self.parts = Parts(loaded, life, api, link)
        self.phase = DaemonStatus(self.parts)
        self.operations = Operations(self.parts, read, lambda: self.phase)

    async def run(self) -> int:
        """Run the whole life; return the exit status."""
        self.life.take_signals(self.operations.hang_up if self.parts.loaded.file else None)
        path = self.parts.config.control.socket
        control = ControlServer(
            Path(path) if path else default_socket(),
            lambda: self.phase.snapshot(),
            self.operations,
            lambda question: self.phase.look_closer(question),
            makes_folder=not path,
        )
        await control.start()  # first of all: a second daemon fails here
        try:
            await self._live()
        finally:
            await control.close()
        if self.life.fault:
            log.error("%s", self.life.fault)
        return 1 if self.life.fault else 0

    async def _live(self) -> None:
        """Serve, now that no other daemon holds the control socket."""
        server = self.parts.config.server
        # Looking a name up may take long.
        listener = await self.life.unless_stopped(
            lambda: listen(server.host, server.port), self.phase.tell_stage
        )
        if listener is None:
            return
        async with contextlib.AsyncExitStack() as ends:  # last of all, after the API process
            ends.callback(listener.close)
            ends.push_async_callback(self.life.close)
            self.life.spawn(feed_watchdog(lambda: self.phase.stuck()))
            self.life.spawn(self.parts.api.run(listener))
            firsts = [rank_devices(spec)[0] for spec in self.parts.config.instance]
            early = EarlyWorker(likely_kind(firsts))
            ends.push_async_callback(early.close)
            try:
                if not by_ray(self.parts.config):
                    await early.start()
                found = await self.prepare(url_of(listener))
                if found is None:
                    self._say_stopping()
                else:
                    await self._serve(*found, early, ends)
            finally:
                await self.parts.api.close()

    def _api_started(self, sock: socket.socket, generation: int) -> ApiLink:
        """Send a new API process everything it must know."""
        self.parts.link.connect(sock, generation)
        self.operations.tell_settings()
        self.phase.tell()
        return self.parts.link

    async def prepare(self, url: str) -> tuple[ServedModel, StartTimes] | None:
        """Find the model to serve, and how long its last starts took; None: stopped meanwhile."""
        self.phase = status = DaemonStatus(self.parts, url)
        config, loads = self.parts.config, self.parts.loads
        for note in self.parts.loaded.notes:
            log.warning("%s", note)
        for lacking in shortfalls(config):
            log.warning("%s: %s", lacking.key, lacking.text)
        loads.stage = "preparing the model"
        log.info("preparing %s", model_in_words(config))
        status.tell_stage()
        self.life.spawn(show_start(loads, lambda: self.phase))
        self.life.spawn(self._repeat_serving())
        progress, times = on_loop(status.converts), cache_folder(config) / "starts.json"
        return await self.life.unless_stopped(
            lambda: (find_model(config, progress=progress), StartTimes(times)), status.tell_stage
        )

    async def _serve(
        self,
        model: ServedModel,
        times: StartTimes,
        early: EarlyWorker,
        ends: contextlib.AsyncExitStack,
    ) -> None:
        """Start the model's workers, and serve until told to stop and drained."""
        config, link = self.parts.config, self.parts.link
        configured = model.configured(config, time.monotonic(), self.parts.loaded.written, times)
        gpus = GpuWatch(model.cards)
        power = PowerCaps(
            config.power,
            model.limited_cards,
            [instance.role for instance in configured.instances],
            config.slo.tpot_s,
        )
        runtime = Runtime(
            configured,
            self._store,
            _journal(config, configured),
            link,
            ToWorkers(
                wake=lambda instance: workers.wake(instance),
                plan=lambda instance, plan: workers.of(instance).send(plan),
                start_transfer=lambda instance, order: workers.of(instance).start_transfer(order),
                cancel_transfer=lambda instance, number: workers.of(instance).cancel_transfer(
                    number
                ),
                link=lambda instance, rank, link, fd: workers.of(instance).new_link(link, fd, rank),
                end_link=lambda instance, rank, link: workers.of(instance).end_link(link, rank),
                hangs=lambda instance, why: workers.of(instance).give_up(why),
                is_stopped=lambda instance: workers.of(instance).is_stopped,
                pairs=model.pair_links(),
                door=lambda instance: workers.of(instance).door,
            ),
            power,
            config.scheduler.prompt_lookup,
        )
        url = self.phase.url
        self.phase = serving = ServingStatus(
            *(self.parts, url, model, runtime, gpus, power),
            processes=lambda index: workers.of(index).processes,
        )
        workers = Workers(self.parts, model, times, runtime, serving, early)
        for close in (gpus.stop, runtime.close):
            ends.callback(close)
        ends.push_async_callback(workers.close)
        gpus.start()
        log.info("default sampling: %s", model.defaults)
        workers.start()
        self.life.spawn(power.run())
        self._start_planner(ends)
        self.life.spawn(_repeat_gauges(serving, runtime, link))
        await self.life.stop.wait()
        await self._drain(runtime)

    def _start_planner(self, ends: contextlib.AsyncExitStack) -> None:
        """Start the process that plans, where the configuration has one."""
        if self.parts.config.plan.auto:
            planner = PlannerProcess(_planner_arguments(self.parts.config), self._planned)
            ends.push_async_callback(planner.close)
            self.life.spawn(planner.run())

    def _planned(self, plan: PlanStatus) -> None:
        """Keep what the planner process tells, for viewers."""
        if plan.note and plan.note != self.parts.plan.note:
            log.info("plan: %s", plan.words)
        self.parts.plan = plan

    async def _repeat_serving(self) -> None:
        """Refresh /health: that the daemon lives, and the age of the newest step."""
        while True:
            await asyncio.sleep(SERVING_INTERVAL_S)
            self.phase.tell()

    async def _drain(self, runtime: Runtime) -> None:
        """Take nothing new; let running answers end within `drain_s`, then end them."""
        runtime.drain()
        self._say_stopping()
        running = runtime.core.num_running + runtime.core.num_waiting
        log.info("stopping; answers under way: %d", running)
        reasons = [asyncio.ensure_future(e.wait()) for e in (runtime.empty, self.life.hurry)]
        await asyncio.wait(
            reasons,
            timeout=self.parts.config.daemon.drain_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for reason in reasons:
            reason.cancel()
        if runtime.core.sequences:
            log.warning("answers that are cut off: %d", len(runtime.core.sequences))
            self.parts.link.end_all()

    def _say_stopping(self) -> None:
        notify.stopping("draining")
        self.phase.tell()


def _api_config(config: Config) -> str:
    """The configuration that the API process starts with, as JSON."""
    model = served_name(config)
    fields = {
        **msgspec.structs.asdict(config.server),
        "model": model,
        "predict": config.predict,
        "predict_store": str(default_predictions(model).absolute()),
    }
    return msgspec.json.encode(fields).decode()


def _planner_arguments(config: Config) -> list[str]:
    path, slo = config.control.socket, config.slo
    return [
        *("--socket", str(Path(path) if path else default_socket())),
        *("--journal", str(_journal_folder(config))),
        *("--profile", config.plan.profile),
        *("--period-s", str(config.plan.period_s)),
        *("--slo-ttft", str(slo.ttft_s), "--slo-tpot", str(slo.tpot_s)),
    ]


def _journal(config: Config, configured: Configured) -> JournalWriter | None:
    journal = config.journal
    if not journal.enabled:
        return None
    return JournalWriter(_journal_folder(config), journal.max_bytes, configured, beside=True)


def _journal_folder(config: Config) -> Path:
    return Path(config.journal.folder) if config.journal.folder else default_journal()


async def _repeat_gauges(serving: ServingStatus, runtime: Runtime, link: ApiLink) -> None:
    """Keep the figures of `/metrics` fresh, and the journal's file not far behind its events."""
    while True:
        due_s = time.monotonic() + GAUGES_INTERVAL_S
        await asyncio.sleep(GAUGES_INTERVAL_S)
        link.send(serving.gauges(max(0.0, time.monotonic() - due_s)))
        runtime.flush_journal()
