"""The routes of completions and tokenizing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
from aiohttp import web

from daemon.api.answer.channels import ChannelReader
from daemon.api.answer.choice import Output
from daemon.api.answer.job import Job
from daemon.api.answer.outputs import Collector, Streamer
from daemon.api.answer.prepare import Work, conversation, prepare_chat, prepare_completion
from daemon.api.answer.shapes import DONE, AnswerShape, ChatShape, CompletionShape, event
from daemon.api.answer.sink import Sink
from daemon.api.answer.thoughts import Thinking, ThoughtReader
from daemon.api.answer.tool_output import CallCollector, CallStreamer
from daemon.api.answer.turns import TurnReader
from daemon.api.config import ApiConfig
from daemon.api.front.about import json_answer
from daemon.api.front.tokenizing import asked_conversation, detokenize, tokenize
from daemon.api.http.account import Account
from daemon.api.http.body import read_body
from daemon.api.http.connection import CUT, Connection
from daemon.api.http.middleware import ACCOUNT, ARRIVED_S, owner_of
from daemon.api.http.tally import Tally
from daemon.api.link.link import RuntimeLink
from daemon.api.metrics.metrics import Metrics
from daemon.api.model import CurrentModel
from daemon.api.replies.errors import ApiError
from daemon.api.request.decode import BodyDecoder, Request
from daemon.api.request.sampling import max_repeated_tokens
from daemon.api.request.schema import (
    ChatRequest,
    Common,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from daemon.api.sandbox.conversation import CHANNELS, TURNS
from daemon.api.sandbox.grammar import Grammars
from daemon.api.sandbox.templates import Templates
from daemon.api.sandbox.threads import Threads
from daemon.api.text.text import Text
from daemon.protocol.api import Serving

KEEP_ALIVE_TICKS = 4
SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

_chat_decoder = msgspec.json.Decoder(ChatRequest)
_completion_decoder = msgspec.json.Decoder(CompletionRequest)
_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)

Asking = Common | TokenizeRequest | DetokenizeRequest
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Api:
    """The handlers and what they share."""

    _config: ApiConfig
    _model: CurrentModel
    _link: RuntimeLink
    _threads: Threads
    _metrics: Metrics
    _tally: Tally
    _grammars: Grammars
    _templates: Templates
    _decoder: BodyDecoder = field(default_factory=BodyDecoder)
    _sinks: set[Sink] = field(default_factory=set)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Register the routes."""
        router.add_post("/v1/completions", self.completions)
        router.add_post("/v1/chat/completions", self.chat_completions)
        for root in ("", "/v1"):
            router.add_post(f"{root}/tokenize", self.tokenize)
            router.add_post(f"{root}/detokenize", self.detokenize)

    @property
    def num_streams(self) -> int:
        """Answers being streamed."""
        return len(self._sinks)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        body = await self._body(request, _completion_decoder)
        serving, text = self._admit(request, body)
        work = await self._threaded(request, lambda: prepare_completion(body, text, serving))
        echoes = tuple(echo for echo in work.echoes for _ in range(work.n))
        shape = CompletionShape(self._model.name, text.token_bytes, _include_usage(body), echoes)
        return await self._answer(request, body, work, text, serving, shape)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        body = await self._body(request, _chat_decoder)
        serving, text = self._admit(request, body)
        template_input = await self._threaded(request, lambda: conversation(body, serving))
        rendered = await self._templates.render(template_input, serving, owner_of(request))
        work = await self._threaded(request, lambda: prepare_chat(body, rendered, text, serving))
        shape = ChatShape(self._model.name, text.token_bytes, _include_usage(body))
        return await self._answer(request, body, work, text, serving, shape)

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """`POST /tokenize`."""
        body = await self._body(request, _tokenize_decoder)
        serving, text = self._admit(request, body)
        template_input = await self._threaded(request, lambda: asked_conversation(body))
        rendered = None
        if template_input is not None:
            rendered = await self._templates.render(template_input, serving, owner_of(request))
        return json_answer(
            await self._threaded(request, lambda: tokenize(body, rendered, text, serving))
        )

    async def detokenize(self, request: web.Request) -> web.StreamResponse:
        """`POST /detokenize`."""
        body = await self._body(request, _detokenize_decoder)
        serving, text = self._admit(request, body)
        return json_answer(await self._threaded(request, lambda: detokenize(body, text, serving)))

    def keep_alive(self) -> None:
        """Keep streams alive; called `KEEP_ALIVE_TICKS` times every `keepalive_s`."""
        for sink in self._sinks:
            sink.tick(KEEP_ALIVE_TICKS)

    async def _body(
        self, request: web.Request, decoder: "msgspec.json.Decoder[Request]"
    ) -> Request:
        """Read and decode a request's body. Raises ApiError."""
        return await self._decoder.decode(decoder, await read_body(request))

    def _admit(self, request: web.Request, body: Asking) -> tuple[Serving, Text]:
        serving, text = self._model.admit(body.model)
        account = request.get(ACCOUNT)
        return serving, text if account is None else text.salted(account.salt)

    async def _threaded(self, request: web.Request, work: Callable[[], Made]) -> Made:
        return await self._threads.run(owner_of(request), work)

    async def _answer(
        self,
        request: web.Request,
        body: Common,
        work: Work,
        text: Text,
        serving: Serving,
        shape: AnswerShape,
    ) -> web.StreamResponse:
        await self._grammars.check(work.sampling, work.bound_by, owner_of(request))
        most = max_repeated_tokens(body, work.sampling, self._config.max_repeated_tokens)
        work = msgspec.structs.replace(work, max_repeated_tokens=most)
        account = request.get(ACCOUNT)
        if account is not None:
            work = msgspec.structs.replace(
                work,
                priority=account.priority(body.priority),
                slo_scale=account.key.slo_scale,
            )
        arrived_s, key = request[ARRIVED_S], account.key.name if account is not None else ""
        if body.stream:
            sink = Sink(self._config.stall_timeout_s, partial(self._tally.note, CUT))
            streamer = _streamer(shape, sink, work)
            output = _split(streamer, work)
            job = Job(work, text, output, arrived_s, key)
            return await self._stream(request, job, account, shape, sink)
        collector = _collector(shape, work)
        job = Job(work, text, _split(collector, work), arrived_s, key)
        with self._submitted(job, account):
            await job.finished()
        return web.Response(body=collector.body(job.usage), content_type="application/json")

    @contextmanager
    def _submitted(self, job: Job, account: Account | None) -> Iterator[None]:
        """Submit a job to the runtime for the block's duration, and charge its key."""
        lease = None
        if account is not None:
            work = job.work
            num_answers = work.n * len(work.prompts)
            lease = account.begin(num_answers, work.num_prompt_tokens, job)
        try:
            self._link.submit(job)
            yield
        finally:
            self._link.drop(job)
            if lease is not None:
                lease.end()

    async def _stream(
        self,
        request: web.Request,
        job: Job,
        account: Account | None,
        shape: AnswerShape,
        sink: Sink,
    ) -> web.StreamResponse:
        try:
            with self._submitted(job, account):
                # Until the head is sent a refusal can be an HTTP status: wait for it, but not long.
                await job.accepted(self._config.keepalive_s)
                response = await self._open(request, sink)
                self._sinks.add(sink)
                try:
                    await job.finished()
                    sink.write(shape.usage_event(job.usage) + DONE)
                except ApiError as error:
                    self._metrics.refused(error)
                    sink.write(event(error.body) + DONE)
            await sink.emptied()
        finally:
            self._sinks.discard(sink)
            sink.close()
        return response  # aiohttp writes its end, and the connection watches that it is read

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
        assert isinstance(request.protocol, Connection)
        request.protocol.probe = sink.probe
        return response


def _streamer(shape: AnswerShape, sink: Sink, work: Work) -> Streamer:
    if work.tools is None:
        return Streamer(shape, sink)
    return CallStreamer(shape, sink, work.tools)


def _collector(shape: AnswerShape, work: Work) -> Collector:
    with_logprobs = work.sampling.logprobs >= 0
    if work.tools is None:
        return Collector(shape, with_logprobs)
    return CallCollector(shape, with_logprobs, work.tools)


def _split(output: Streamer | Collector, work: Work) -> Output:
    """The output with thoughts apart, where an answer may have them."""
    if not work.thoughts:
        return output
    tools = work.tools
    calls = (tools.names, tools.several) if tools is not None else ()
    if work.thoughts == CHANNELS:
        return Thinking(output, partial(ChannelReader, *calls))
    if work.thoughts == TURNS:
        return Thinking(output, partial(TurnReader, *calls))
    return Thinking(output, partial(ThoughtReader, work.opens_thought))


def _include_usage(body: Common) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)
