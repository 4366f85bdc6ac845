"""The routes: each handler reads as what happens to its request."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

import msgspec
from aiohttp import web

from daemon.api.body import read_body
from daemon.api.config import ApiConfig
from daemon.api.decode import Request, decode
from daemon.api.errors import ApiError
from daemon.api.job import Job
from daemon.api.link import Link
from daemon.api.model import Model
from daemon.api.outputs import Collector, Streamer
from daemon.api.prepare import Work, prepare_chat, prepare_completion
from daemon.api.schema import ChatRequest, Common, CompletionRequest
from daemon.api.shapes import DONE, ChatShape, CompletionShape, Shape, error_event
from daemon.api.sink import Sink
from daemon.api.text import Text
from daemon.runtime.protocol import Serving

KEEP_ALIVE_TICKS = 4
SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

_chat_decoder = msgspec.json.Decoder(ChatRequest)
_completion_decoder = msgspec.json.Decoder(CompletionRequest)


class Api:
    """What the handlers share."""

    def __init__(self, config: ApiConfig, model: Model, link: Link, pool: Executor) -> None:
        self._config = config
        self._model = model
        self._link = link
        self._pool = pool
        self._sinks: set[Sink] = set()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Say what is served where."""
        router.add_post("/v1/completions", self.completions)
        router.add_post("/v1/chat/completions", self.chat_completions)
        router.add_get("/v1/models", self.models)
        router.add_get("/v1/models/{id:.+}", self.one_model)
        router.add_get("/health", self.health)
        router.add_get("/ready", self.ready)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        body = decode(_completion_decoder, await read_body(request))
        work, text, serving = await self._prepare(body, prepare_completion)
        echo = tuple(p.text for p in work.prompts for _ in range(work.n)) if body.echo else ()
        shape = CompletionShape(self._model.name, text.token_bytes, _include_usage(body), echo)
        return await self._answer(request, body, work, text, serving, shape)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        body = decode(_chat_decoder, await read_body(request))
        work, text, serving = await self._prepare(body, prepare_chat)
        shape = ChatShape(self._model.name, text.token_bytes, _include_usage(body))
        return await self._answer(request, body, work, text, serving, shape)

    async def models(self, _request: web.Request) -> web.StreamResponse:
        """`GET /v1/models`."""
        return _json({"object": "list", "data": [self._card()]})

    async def one_model(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/models/{id}`."""
        self._model.check_name(request.match_info["id"])
        return _json(self._card())

    async def health(self, _request: web.Request) -> web.StreamResponse:
        """`GET /health`: this process lives."""
        age_s = self._model.last_step_age_s
        status = self._model.status
        return _json({"status": "alive", "detail": status, "last_step_age_s": age_s})

    async def ready(self, _request: web.Request) -> web.StreamResponse:
        """`GET /ready`: requests are taken."""
        ready = self._model.ready and not self._link.lost
        body = {"status": "ready" if ready else "not ready", "detail": self._model.status}
        return _json(body, 200 if ready else 503)

    def keep_alive(self) -> None:
        """Called `KEEP_ALIVE_TICKS` times every `keepalive_s`."""
        for sink in self._sinks:
            sink.tick(KEEP_ALIVE_TICKS)

    async def _prepare(
        self, body: Request, prepare: Callable[[Request, Text, Serving], Work]
    ) -> tuple[Work, Text, Serving]:
        assert isinstance(body, Common)
        serving, text = self._model.admit(body.model)
        loop = asyncio.get_running_loop()
        work = await loop.run_in_executor(self._pool, prepare, body, text, serving)
        return work, text, serving

    async def _answer(
        self,
        request: web.Request,
        body: Common,
        work: Work,
        text: Text,
        serving: Serving,
        shape: Shape,
    ) -> web.StreamResponse:
        if body.stream:
            sink = Sink()
            job = Job(work, text, serving.block_size, Streamer(shape, sink))
            return await self._stream(request, job, shape, sink)
        collector = Collector(shape, work.sampling.logprobs >= 0)
        job = Job(work, text, serving.block_size, collector)
        try:
            self._link.submit(job)
            await job.finished()
        finally:
            self._link.drop(job)
        return web.Response(body=collector.body(job.usage), content_type="application/json")

    async def _stream(
        self, request: web.Request, job: Job, shape: Shape, sink: Sink
    ) -> web.StreamResponse:
        try:
            self._link.submit(job)
            # A refusal is still an HTTP status until the head is sent; no longer than this.
            await job.accepted(self._config.keepalive_s)
            response = await self._open(request, sink)
            self._sinks.add(sink)
            try:
                await job.finished()
                sink.write(shape.usage_event(job.usage) + DONE)
            except ApiError as error:
                sink.write(error_event(error) + DONE)
            await sink.emptied()
        finally:
            self._link.drop(job)
            self._sinks.discard(sink)
            sink.close()
        await response.write_eof()
        return response

    async def _open(self, request: web.Request, sink: Sink) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE_HEADERS)
        chunked = request.version >= (1, 1)
        if chunked:
            response.enable_chunked_encoding()
        else:
            response.force_close()
        await response.prepare(request)
        if request.transport is None:
            raise ConnectionResetError("the client has gone")
        sink.attach(request.transport, chunked)
        return response

    def _card(self) -> dict[str, object]:
        serving = self._model.serving
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created,
            "owned_by": "llmd",
            "root": serving.root if serving is not None else "",
            "max_model_len": serving.max_len if serving is not None else 0,
        }


def _include_usage(body: Common) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _json(data: Mapping[str, object], status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(data), status=status, content_type="application/json"
    )
