"""An OpenAI endpoint on loopback whose every answer the test writes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

MODEL = "scripted"
Body = dict[str, Any]
Script = Callable[[int, Body, web.StreamResponse], Awaitable[None]]


def event(choice: Body | None = None, **rest: Any) -> bytes:
    """One SSE event."""
    choices = [] if choice is None else [{"index": 0, **choice}]
    return f"data: {json.dumps({'choices': choices, **rest})}\n\n".encode()


def usage(body: Body, num_tokens: int, cached: int = 0) -> Body:
    """The counts of an answer to `body`."""
    prompt = body.get("prompt") or body["messages"][0]["content"]
    count = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    count += 0 if "prompt" in body else 30  # a chat's template
    details = {"cached_tokens": cached}
    return {
        "prompt_tokens": count,
        "completion_tokens": num_tokens,
        "prompt_tokens_details": details,
    }


def text(body: Body, words: str, reason: str | None = None) -> bytes:
    """An event with text, in the shape that `body` asks for."""
    shape = {"text": words} if "prompt" in body else {"delta": {"content": words}}
    return event({**shape, "finish_reason": reason})


def end(body: Body, num_tokens: int) -> bytes:
    """The counts and the end."""
    return event(usage=usage(body, num_tokens)) + b"data: [DONE]\n\n"


async def each_token(_: int, body: Body, response: web.StreamResponse) -> None:
    """As many events as tokens were asked for, each sent on its own; a chat has an opening."""
    if "messages" in body:
        await response.write(event({"delta": {"role": "assistant", "content": ""}}))
    for _token in range(body["max_tokens"]):
        await response.write(text(body, "a"))
    await response.write(text(body, "", "length"))
    await response.write(end(body, body["max_tokens"]))


class Refused(Exception):
    """What a script raises at once to answer with an HTTP status instead of a stream."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(body)
        self.status, self.body = status, body


class ScriptedServer:
    """`bodies` are the streamed requests in order of arrival; probes are kept apart."""

    def __init__(self, script: Script = each_token) -> None:
        self.script = script
        self.refuse: Callable[[Body], Refused | None] = lambda _: None
        self.cards: list[Body] = [{"id": MODEL, "max_model_len": 100}]
        self.bodies: list[Body] = []
        self.probes: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = asyncio.Condition()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def until(self, count: int) -> None:
        """Wait for that many streamed requests."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.bodies) >= count)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        return web.json_response({"object": "list", "data": self.cards})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        refusal = self.refuse(body)
        if refusal is not None:
            return web.Response(status=refusal.status, text=refusal.body)
        if not body["stream"]:
            self.probes.append(body)
            return web.json_response({"choices": [], "usage": usage(body, 1)})
        async with self.arrived:
            self.bodies.append(body)
            index = len(self.bodies) - 1
            self.arrived.notify_all()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            response.enable_chunked_encoding()
            await self.script(index, body, _Prepared(response, request))
        except Refused as refused:
            return web.Response(status=refused.status, text=refused.body)
        return response


class _Prepared(web.StreamResponse):
    """Sends the head with the first write, so that a script may still refuse before."""

    def __init__(self, response: web.StreamResponse, request: web.Request) -> None:
        super().__init__()
        self._inner, self._request = response, request

    async def write(self, data: bytes) -> None:
        if not self._inner.prepared:
            await self._inner.prepare(self._request)
        await self._inner.write(data)

    def cut(self) -> None:
        """Close the connection in the middle."""
        assert self._request.transport is not None
        self._request.transport.abort()
