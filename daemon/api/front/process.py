"""The API process: it builds a server on two inherited descriptors, and shuts it down again."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import uvloop
from aiohttp import web

from daemon.api.config import ApiConfig
from daemon.api.front.about import AboutRoutes
from daemon.api.front.routes import KEEP_ALIVE_TICKS, Api
from daemon.api.front.status import ServerStatus
from daemon.api.http.body import BODY_TIMEOUT_S
from daemon.api.http.connections import Connections
from daemon.api.http.hosts import Hosts
from daemon.api.http.keyring import Keyring
from daemon.api.http.middleware import Front
from daemon.api.http.tally import Tally
from daemon.api.link.link import RuntimeLink
from daemon.api.link.predictions import Predictions
from daemon.api.metrics.metrics import Metrics
from daemon.api.model import CurrentModel
from daemon.api.page import rendering
from daemon.api.page.page import PATH, Page
from daemon.api.request_id import WithRequestId
from daemon.api.sandbox.grammar import Grammars
from daemon.api.sandbox.templates import Templates
from daemon.api.sandbox.threads import Threads
from daemon.base import logs
from daemon.protocol.api import Access, Gauges, Serving, Settings

log = logging.getLogger(__name__)

TOKENIZER_THREADS = 3
"""One more than one client may use."""
LAST_WORDS_S = 2.0
"""Time for error events to reach clients once the runtime is gone."""
LEARNING_S = 2.0
"""Time that a shutdown waits for answers to learn from; the daemon allows 5 s, of which the
predictor needs half to save its data."""
BACKLOG = 1024
LAG_INTERVAL_S = 0.25


class _Process:
    """The process's state; `run` is its whole life."""

    def __init__(self, channel: socket.socket, listener: socket.socket, config: ApiConfig) -> None:
        self._listener = listener
        self._config = config
        self._keepalive_s = config.keepalive_s
        self._stop = asyncio.Event()
        self._drained = asyncio.Event()
        self._pool = ThreadPoolExecutor(TOKENIZER_THREADS, "tokenizer")
        self._model = CurrentModel(config.model, self._pool)
        self._metrics = Metrics(config.model)
        self._status = ServerStatus(self._model)
        self._keys = Keyring()
        self._link = RuntimeLink(
            channel,
            {
                Access: self._update_access,
                Settings: self._apply_settings,
                Serving: self._serve,
                Gauges: self._measure,
            },
            self._stop.set,
            lambda: self._model.settled,
            self._metrics,
        )
        if config.predict.kind != "none":
            self._link.predictions = Predictions(config, self._link.tell)
        self._tally = Tally()
        self._connections = Connections(config, self._tally)
        self._hosts = Hosts(listener.getsockname()[0])
        self._front = Front(
            self._hosts,
            self._keys,
            self._tally,
            self._metrics.refused,
            PATH if config.page else "",
            [rendering.PATH],
        )
        self._rendering = rendering.Rendering()
        self._grammars = Grammars(self._model)
        self._templates = Templates()
        self._warming: asyncio.Task[None] | None = None
        self._api = Api(
            config,
            self._model,
            self._link,
            Threads(self._pool, TOKENIZER_THREADS),
            self._metrics,
            self._tally,
            self._grammars,
            self._templates,
        )
        self._about = AboutRoutes(self._model, self._link, self._metrics, self._status)

    async def run(self) -> None:
        """Serve until SIGTERM or the channel's end; then finish open requests."""
        self._take_signals()
        runner = self._runner()
        await runner.setup()
        server = await self._listen(runner)
        predicting = asyncio.create_task(self._predict())
        ticker = asyncio.create_task(self._tick())
        measuring = asyncio.create_task(self._measure_lag())
        self._watch()
        _quieten_collector()
        await self._stop.wait()
        self._model.draining = True
        server.close()
        ending = asyncio.create_task(self._end(predicting))
        await self._drain()
        self._drained.set()
        ticker.cancel()
        measuring.cancel()
        if self._warming is not None:
            self._warming.cancel()
        await asyncio.gather(runner.cleanup(), ending)
        helpers = self._grammars, self._templates, self._rendering
        await asyncio.gather(*(helper.close() for helper in helpers))
        self._link.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _serve(self, serving: Serving) -> None:
        self._model.update(serving)
        if serving.root and serving.ready and self._warming is None:
            self._warming = asyncio.create_task(self._templates.warm(serving.root))

    def _measure(self, gauges: Gauges) -> None:
        self._metrics.gauges(gauges)
        self._status.update(gauges, time.monotonic())

    def _update_access(self, access: Access) -> None:
        self._keys.update(access.keys)
        self._front.allow(access.cors_origins, access.allowed_hosts)
        if not (access.keys or self._hosts.is_loopback):
            log.warning("there are no API keys: every client of %s is admitted", self._config.host)

    def _apply_settings(self, settings: Settings) -> None:
        self._keepalive_s = settings.keepalive_s
        logs.set_level(settings.log_level)

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        # Ctrl-C reaches the whole process group; the parent decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _runner(self) -> web.AppRunner:
        app = web.Application(client_max_size=self._config.body_limit_bytes)
        app[BODY_TIMEOUT_S] = self._config.body_timeout_s
        app.on_response_prepare.append(self._front.add_headers)
        self._api.add_routes(app.router)
        self._about.add_routes(app.router)
        if self._config.page:
            Page().add_routes(app.router)
            self._rendering.add_routes(app.router)
        return web.AppRunner(
            app,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=LAST_WORDS_S,
        )

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        assert runner.server is not None
        runner.server.request_handler = self._front.around(runner.server.request_handler)
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        connect = partial(self._connections.connect, runner.server)
        return await loop.create_server(connect, sock=self._listener, backlog=BACKLOG)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._keepalive_s / KEEP_ALIVE_TICKS)
            self._api.keep_alive()

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._metrics.api_lag(max(0.0, loop.time() - due_s))

    def _watch(self) -> None:
        watch = self._metrics.watch
        watch("http_connections", "Open HTTP connections.", lambda: len(self._connections.open))
        watch("http_requests", "HTTP requests being answered.", lambda: self._front.num_open)
        watch("sse_streams", "Answers being streamed.", lambda: self._api.num_streams)
        watch("ready", "Whether requests are taken.", lambda: self._about.is_ready)
        events, tally = "Events that clients caused, as the log names them.", self._tally
        self._metrics.count("client_events", events, "event", lambda: tally.totals)
        predictions = self._link.predictions
        if predictions is not None:
            text = "Requests whose length was to be predicted, by outcome."
            self._metrics.count("predictions", text, "outcome", lambda: predictions.outcomes)

    async def _predict(self) -> None:
        if self._link.predictions is None:
            return
        try:
            await self._link.predictions.run()
        except Exception:
            log.exception("there are no predictions from here on")

    async def _end(self, predicting: "asyncio.Task[None]") -> None:
        """End predictions once all is answered, or in time before this process would be killed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), LEARNING_S)
        if self._link.predictions is not None:
            await self._link.predictions.close()
        await predicting

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        lost_at_s = 0.0
        while self._front.num_open:
            if self._link.lost:
                lost_at_s = lost_at_s or loop.time()
                if loop.time() - lost_at_s > LAST_WORDS_S:
                    log.warning("requests that end unfinished: %d", self._front.num_open)
                    return
            await asyncio.sleep(0.02)


def _quieten_collector() -> None:
    # Objects of the start stay; and a stream's small lists must not cause a collection each step.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def serve(fd: int, listen_fd: int, config_json: str) -> None:
    """Run the process with its descriptors and its configuration."""
    logs.set_up("api", context=WithRequestId())
    config = msgspec.json.decode(config_json, type=ApiConfig)

    async def run() -> None:
        await _Process(_adopted(fd), _adopted(listen_fd), config).run()

    uvloop.run(run())


def _adopted(fd: int) -> socket.socket:
    """A socket that the parent left open for us."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)
