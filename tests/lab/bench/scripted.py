"""An OpenAI endpoint on loopback whose every answer the test writes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

MODEL = "scripted"
TEMPLATE_TOKENS = 30
Body = dict[str, Any]


def event(choice: Body | None = None, **rest: Any) -> bytes:
    """One SSE event."""
    choices = [] if choice is None else [{"index": 0, **choice}]
    return f"data: {json.dumps({'choices': choices, **rest})}\n\n".encode()


def usage(body: Body, num_tokens: int, cached: int = 0) -> Body:
    """The counts of an answer to `body`; a word is a token."""
    if "messages" in body:
        count = len(body["messages"][0]["content"].split()) + TEMPLATE_TOKENS
    else:
        prompt = body["prompt"]
        count = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    return {
        "prompt_tokens": count,
        "completion_tokens": num_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Stream:
    """One streamed answer, as its script writes it."""

    def __init__(self, index: int, body: Body, request: web.Request) -> None:
        self.index = index  # in order of arrival
        self.body = body
        self.num_tokens: int = body["max_tokens"]
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._request = request

    async def open(self) -> None:
        """Send the head; a chat's opening event too."""
        await self.response.prepare(self._request)
        if "messages" in self.body:
            await self.write(event({"delta": {"role": "assistant", "content": ""}}))

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self.response.write(data)

    async def text(self, words: str, reason: str | None = None) -> None:
        """An event with text, in the shape that was asked for."""
        chat = "messages" in self.body
        shape = {"delta": {"content": words} if words else {}} if chat else {"text": words}
        await self.write(event({**shape, "finish_reason": reason}))

    async def end(self, num_tokens: int, cached: int = 0) -> None:
        """The counts and the end."""
        await self.write(event(usage=usage(self.body, num_tokens, cached)) + b"data: [DONE]\n\n")

    def cut(self) -> None:
        """Close the connection in the middle."""
        assert self._request.transport is not None
        self._request.transport.abort()


async def each_token(stream: Stream) -> None:
    """An event for each token that was asked for, the reason, the counts."""
    for _ in range(stream.num_tokens):
        await stream.text("a")
    await stream.text("", "length")
    await stream.end(stream.num_tokens)


class ScriptedServer:
    """`bodies` are the streamed requests in order of arrival; `probes` those not streamed."""

    def __init__(self) -> None:
        self.script: Callable[[Stream], Awaitable[None]] = each_token
        self.refuse: Callable[[Body], tuple[int, str | bytes] | None] = lambda _: None
        self.cards: list[Body] = [{"id": MODEL, "max_model_len": 100}]
        self.raw_cards: bytes | None = None  # instead of them
        self.bodies: list[Body] = []
        self.probes: list[Body] = []
        self.authorization = ""
        self._arrived = asyncio.Condition()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
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
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.bodies) >= count)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.authorization = request.headers.get("Authorization", "")
        if self.raw_cards is not None:
            return web.Response(body=self.raw_cards)
        return web.json_response({"object": "list", "data": self.cards})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body: Body = await request.json()
        if not body["stream"]:
            self.probes.append(body)
        else:
            async with self._arrived:
                self.bodies.append(body)
                index = len(self.bodies) - 1
                self._arrived.notify_all()
        refusal = self.refuse(body)
        if refusal is not None:
            status, said = refusal
            return web.Response(status=status, body=said)
        if not body["stream"]:
            return web.json_response({"choices": [], "usage": usage(body, 1)})
        stream = Stream(index, body, request)
        await stream.open()
        await self.script(stream)
        return stream.response
