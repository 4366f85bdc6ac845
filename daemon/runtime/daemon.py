"""The daemon's life: start, serve, drain. It reads from top to bottom as it happens."""

import asyncio
import faulthandler
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from daemon import logs
from daemon.config.cuda import DeviceError
from daemon.config.load import Loaded
from daemon.config.paths import default_journal, default_predictions, default_socket
from daemon.config.schema import Config
from daemon.control.server import ControlServer
from daemon.core.actions import Rejected
from daemon.core.events import Configured, Event, RequestArrived
from daemon.journal.writer import JournalWriter
from daemon.memory.sizing import SizingError
from daemon.models.shape import ModelError
from daemon.protocol.control import ApiStatus
from daemon.protocol.worker import Copied, Loading, Plan, Ready, Reply
from daemon.runtime import notify, watchdog
from daemon.runtime.api_link import ApiLink
from daemon.runtime.beside import heard, in_thread, unless
from daemon.runtime.gpus import GpuWatch
from daemon.runtime.listen import ListenError, listen, url_of
from daemon.runtime.loads import told_of
from daemon.runtime.model import ServedModel, cache_folder, find_model, served_name
from daemon.runtime.operations import Operations
from daemon.runtime.preflight import folders
from daemon.runtime.runtime import Runtime
from daemon.runtime.start_line import show_start
from daemon.runtime.start_times import StartTimes
from daemon.runtime.status import DaemonStatus
from daemon.runtime.token_store import TokenStore
from daemon.supervisor.api import ApiProcess
from daemon.supervisor.spare import Spare, worker_module
from daemon.supervisor.worker import WorkerHooks, WorkerProcess
from daemon.wire.faults import FaultError, faults

T = TypeVar("T")
log = logging.getLogger(__name__)

SERVING_INTERVAL_S = 2.0
GAUGES_INTERVAL_S = 1.0
PREPARING_S = 60.0
"""So often a service manager hears that a model is prepared: converting one may take an hour."""


def run(loaded: Loaded, read: Callable[[], Loaded]) -> int:
    """Serve until a signal or a hopeless fault; the exit status.

    `read` reads the configuration anew, on SIGHUP and `llmd ctl reload`; it may raise ConfigError.
    """
    level, form = loaded.config.daemon.log_level, loaded.config.daemon.log_format
    logs.set_up("daemon", level, form)
    faulthandler.enable()  # what systemd's watchdog aborts leaves its stacks in the log
    try:
        faults()  # refused here, not in every process
        worker_module()
        return uvloop.run(Daemon(loaded, read).run())
    except (ListenError, DeviceError, ModelError, SizingError, FaultError, OSError) as error:
        log.error("%s", error)
        return 1


class Daemon:
    """Owns the runtime, the processes and the sockets."""

    def __init__(self, loaded: Loaded, read: Callable[[], Loaded]) -> None:
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._fault = ""
        self._store = TokenStore()
        self._api: ApiLink | None = None
        self._api_process: ApiProcess | None = None
        self._runtime: Runtime | None = None
        self._workers: list[WorkerProcess] = []
        self._spare: Spare | None = None
        self._gpus = GpuWatch()
        self._num_given_up = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._status = DaemonStatus(loaded.config, served_name(loaded.config))
        self._status.gpus = lambda: self._gpus.latest
        self._operations = Operations(loaded, read, self._status, self._hopeless)

    @property
    def _config(self) -> Config:
        return self._operations.config

    async def run(self) -> int:
        """The whole story; the exit status."""
        self._take_signals()
        path = self._config.control.socket
        control = ControlServer(
            Path(path) if path else default_socket(),
            self._status.snapshot,
            self._operations,
            self._status.look_closer,
        )
        await control.start()  # first of all: it is what a second daemon fails at
        try:
            return await self._live()
        finally:
            await control.close()

    async def _live(self) -> int:
        """The story while there is no other daemon here; the exit status."""
        server = self._config.server
        # A name may take long to be looked up.
        listener = await self._unless_stopped(lambda: listen(server.host, server.port))
        if listener is None:
            return 0
        self._status.url = url_of(listener)
        self._spawn(watchdog.feed(self._status.stuck))
        api = self._start_api(listener)
        try:
            await self._serve()
            await self._drain()
        finally:
            await api.close()
            await asyncio.gather(*(worker.close() for worker in self._workers))
            if self._spare is not None:
                await self._spare.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._runtime is not None:
                self._runtime.close()
            self._gpus.stop()
            listener.close()
        if self._fault:
            log.error("%s", self._fault)
        return 1 if self._fault else 0

    # Starting

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._callback_failed)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        if self._operations.has_file or signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._told_to_reload)

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A Core whose event was handled by halves must not go on: requests would hang unseen."""
        loop.default_exception_handler(context)
        if "handle" in context:
            self._hopeless(f"internal error: {context.get('exception') or context['message']}")

    def _told_to_stop(self) -> None:
        """The first signal drains, a second one does not wait for answers."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    def _told_to_reload(self) -> None:
        """SIGHUP. Without a file there is nothing to read: its terminal was closed. Whoever started
        it with `nohup` wants it to go on then.
        """
        if self._operations.has_file:
            self._spawn(self._operations.hang_up())
        else:
            self._told_to_stop()

    def _start_api(self, listener: socket.socket) -> ApiProcess:
        server = self._config.server
        fields = {
            **msgspec.structs.asdict(server),
            "model": self._status.model,
            "predict": self._config.predict,
            "predict_store": str(default_predictions(self._status.model).absolute()),
        }
        api = ApiProcess(
            listener,
            msgspec.json.encode(fields).decode(),
            self._connect_api,
            self._hopeless,
            self._config.daemon.restarts,
        )
        self._api_process = api
        self._status.api = lambda: ApiStatus(api.up, api.num_deaths)
        self._spawn(api.run())
        return api

    async def _serve(self) -> None:
        """Find the model, start its workers, and run until told to stop."""
        for lacking in folders(self._config):
            log.warning("%s: %s", lacking.key, lacking.text)
        self._say("preparing the model")
        starts = cache_folder(self._config) / "starts.json"
        self._spawn(show_start(self._status))
        told = heard(self._on_converting)
        found = await self._unless_stopped(
            lambda: (find_model(self._config, told=told), StartTimes(starts))
        )
        if found is not None:
            self._start_runtime(*found)
        await self._stop.wait()

    async def _unless_stopped(self, work: Callable[[], T]) -> T | None:
        """What comes of blocking work; None where the daemon is told to stop."""
        return await unless(self._stop, in_thread(work), PREPARING_S, self._tell_stage)

    def _start_runtime(self, model: ServedModel, times: StartTimes) -> None:
        configured = model.configured(self._config, time.monotonic())
        self._runtime = Runtime(configured, self._store, self._journal(configured), self._send_plan)
        self._runtime.api = self._api
        self._operations.runtime = self._runtime
        self._status.begin(self._runtime, model)
        self._gpus.start(model.cards)
        log.info("default sampling: %s", model.defaults)
        hooks = WorkerHooks(
            self._on_loading,
            self._on_ready,
            self._on_reply,
            self._on_lost,
            self._on_hopeless,
            self._on_copied,
            self._status.fell_back,
        )
        if self._config.daemon.spare:
            self._spare = Spare(model.instances[0].device)
        names = []
        for index, spec in enumerate(model.instances):
            load, cores = model.load(self._config, index), model.cores[index]
            log.info("instance %s: %s (%s)", spec.name, cores, cores.why)
            names.append(f"{load.model} {load.dtype} {load.device}")
            restarts = self._config.daemon.restarts
            worker = WorkerProcess(index, spec.name, load, hooks, restarts, self._spare)
            self._workers.append(worker)
            self._spawn(worker.run())
        self._status.loads.remember(times, names)
        self._spawn(self._repeat_serving())
        self._spawn(self._repeat_gauges())

    def _journal(self, configured: Configured) -> JournalWriter | None:
        journal = self._config.journal
        if not journal.enabled:
            return None
        folder = Path(journal.folder) if journal.folder else default_journal()
        return JournalWriter(folder, journal.max_bytes, configured, beside=True)

    # What processes say

    def _connect_api(self, sock: socket.socket, generation: int) -> ApiLink:
        """A new API process takes its predecessor's place."""
        if self._api is not None:
            self._api.hang_up()
        self._api = link = ApiLink(sock, generation, self._store, self._dispatch)
        if self._api_process is not None:
            link.lives = self._api_process.lives
        if self._runtime is not None:
            self._runtime.api = link
        self._operations.introduce(link)
        return link

    def _dispatch(self, event: Event) -> None:
        """An event from the API process; before there is a Core, nothing can be taken."""
        if self._runtime is not None:
            self._runtime.dispatch(event)
        elif isinstance(event, RequestArrived) and self._api is not None:
            self._api.rejected(Rejected(event.request, "not_ready", self._status.sentence, 1.0))

    def _send_plan(self, instance: int, plan: Plan) -> None:
        self._workers[instance].send(plan)

    def _on_converting(self, share: float) -> None:
        if self._status.loads.converts(share):
            self._tell_stage()

    def _on_loading(self, instance: int, progress: Loading) -> None:
        if self._status.loading(instance, progress):
            log.info("%s", self._status.stage)
        self._tell_stage()

    def _on_ready(self, instance: int, ready: Ready) -> None:
        runtime = self._running()
        runtime.worker_ready(instance, ready)
        name = runtime.core.instances[instance].config.name
        for line in told_of(ready, self._status.loads.ended(instance)):
            log.info("worker %s: %s", name, line)
        if self._spare is not None:
            self._spawn(self._spare.prepare())
        gc.collect()
        gc.freeze()
        self._operations.tell_serving()
        if self._status.ready:
            for line in self._status.greeting():
                log.info("%s", line)
            self._status.started = True
            notify.ready(self._status.serves)

    def _on_reply(self, instance: int, reply: Reply) -> None:
        self._running().reply(instance, reply)

    def _on_copied(self, instance: int, copied: Copied) -> None:
        self._running().copied(instance, copied)

    def _on_lost(self, instance: int, blamed: bool) -> None:
        self._status.lost(instance)
        self._running().worker_lost(instance, blamed)
        self._operations.tell_serving()

    def _on_hopeless(self, instance: int, why: str) -> None:
        """A worker is given up. Others serve on; without any the daemon ends."""
        self._status.lost(instance)
        self._num_given_up += 1
        if self._num_given_up == len(self._workers):
            self._hopeless(why)
        else:
            log.error("%s: its instance is given up, the others serve on", why)

    def _hopeless(self, why: str) -> None:
        """Nothing can be served any more: stop, and let the service manager decide."""
        self._fault = why
        self._stop.set()
        self._hurry.set()

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise RuntimeError("a worker spoke before the runtime was there")
        return self._runtime

    # What the daemon says

    def _say(self, stage: str) -> None:
        """Progress while starting."""
        self._status.stage = stage
        log.info("%s", stage)
        self._tell_stage()

    def _tell_stage(self) -> None:
        notify.starting(self._status.sentence)
        self._operations.tell_serving()

    async def _repeat_serving(self) -> None:
        """Keep the age of the newest step fresh for /health."""
        while True:
            await asyncio.sleep(SERVING_INTERVAL_S)
            self._operations.tell_serving()

    async def _repeat_gauges(self) -> None:
        """Keep what `/metrics` shows fresh."""
        while True:
            due_s = time.monotonic() + GAUGES_INTERVAL_S
            await asyncio.sleep(GAUGES_INTERVAL_S)
            gauges = self._status.gauges(max(0.0, time.monotonic() - due_s))
            if self._api is not None and gauges is not None:
                self._api.send_gauges(gauges)

    # Stopping

    async def _drain(self) -> None:
        """Take nothing new; let running answers end in their time, then end them."""
        runtime = self._runtime
        self._operations.stopping = self._status.draining = True
        notify.stopping("draining")
        self._operations.tell_serving()
        if runtime is None:
            return
        runtime.drain()
        running = runtime.core.num_running + runtime.core.num_waiting
        log.info("stopping; %d answers are under way", running)
        reasons = [asyncio.ensure_future(e.wait()) for e in (runtime.empty, self._hurry)]
        await asyncio.wait(
            reasons,
            timeout=self._config.daemon.drain_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for reason in reasons:
            reason.cancel()
        if runtime.core.sequences:
            log.warning("%d answers are cut off", len(runtime.core.sequences))
            if self._api is not None:
                self._api.end_all()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work beside the story; a failure in it ends the daemon instead of hiding."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_done)
        self._tasks.add(task)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task failed", exc_info=task.exception())
            self._hopeless(f"internal error: {task.exception()}")
