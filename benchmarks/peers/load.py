"""Send requests to a server, on this machine only, and note when each token came back."""

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import uvloop

from benchmarks.peers.servers import Server, StartError
from benchmarks.peers.workload import Job, Mode

T = TypeVar("T")
REQUEST_LIMIT_S = 300.0
POLL_S = 0.5


@dataclass
class Answer:
    """What came back for one request; times are in seconds from when it was sent."""

    asked_tokens: int
    tokens: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    end_s: float = 0.0
    error: str = ""

    @property
    def short(self) -> bool:
        """Whether it ended, without an error, before the length that was asked for."""
        return not self.error and self.tokens < self.asked_tokens

    @property
    def normalised_s(self) -> float:
        """Seconds per token over the whole request."""
        return self.end_s / self.tokens

    @property
    def per_token_s(self) -> float:
        """Seconds per token after the first."""
        return (self.last_s - self.first_s) / (self.tokens - 1)


def finish(task: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on an event loop of its own that takes little time itself."""
    return uvloop.run(task)


def _session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
    return aiohttp.ClientSession(connector=connector, timeout=timeout)


def _body(server: Server, prompt: str, num_tokens: int) -> dict[str, Any]:
    body = {"model": server.model_name, "prompt": prompt, "max_tokens": num_tokens}
    return body | {"temperature": 0} | dict(server.spec.body)


def _note(answer: Answer, event: dict[str, Any], now_s: float) -> None:
    """Take one streamed event into account."""
    if "error" in event:
        answer.error = str(event["error"])[:300]
    usage = event.get("usage")
    if usage:
        answer.tokens = usage.get("completion_tokens") or answer.tokens
    for choice in event.get("choices") or ():
        if choice.get("text") or not choice.get("finish_reason"):
            answer.first_s = answer.first_s or now_s
            answer.last_s = now_s


async def _ask(session: aiohttp.ClientSession, server: Server, job: Job) -> Answer:
    """Send one request and read its stream to the end; every failure ends up in the answer."""
    answer = Answer(job.output_tokens)
    body = _body(server, job.prompt, job.output_tokens)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    sent = time.perf_counter()
    try:
        async with session.post(f"{server.url}/v1/completions", json=body) as reply:
            if reply.status != 200:
                answer.error = f"{reply.status} {(await reply.text())[:300]}"
                return answer
            async for line in reply.content:
                data = line[5:].strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":
                    break
                if data:
                    _note(answer, json.loads(data), time.perf_counter() - sent)
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as problem:
        answer.error = repr(problem)[:300]
    answer.end_s = time.perf_counter() - sent
    if not answer.error and not (answer.tokens and answer.first_s):
        answer.error = "no tokens, or no count of them"
    return answer


async def _worker(
    session: aiohttp.ClientSession, server: Server, jobs: Iterator[Job]
) -> list[Answer]:
    """Send jobs one after the other until none is left."""
    return [await _ask(session, server, job) for job in jobs]


async def _arrival(session: aiohttp.ClientSession, server: Server, job: Job) -> Answer:
    """Send one job when its time has come."""
    await asyncio.sleep(job.at_s)
    return await _ask(session, server, job)


async def drive(server: Server, mode: Mode, jobs: list[Job]) -> tuple[list[Answer], float]:
    """Load the server as the mode says; return the answers and the seconds it all took."""
    async with _session() as session:
        started = time.perf_counter()
        if mode.rate_per_s is not None:
            answers = await asyncio.gather(*(_arrival(session, server, job) for job in jobs))
            return answers, time.perf_counter() - started
        queue = iter(jobs)
        workers = (_worker(session, server, queue) for _ in range(mode.streams))
        lists = await asyncio.gather(*workers)
        return [answer for part in lists for answer in part], time.perf_counter() - started


async def complete(server: Server, prompt: str, num_tokens: int) -> str:
    """The text of one answer, not streamed."""
    body = _body(server, prompt, num_tokens)
    url = f"{server.url}/v1/completions"
    async with _session() as session, session.post(url, json=body) as reply:
        reply.raise_for_status()
        text: str = (await reply.json())["choices"][0]["text"]
        return text


async def _model_name(server: Server) -> str:
    """The first name under which the server offers a model."""
    async with _session() as session, session.get(f"{server.url}/v1/models") as reply:
        reply.raise_for_status()
        name: str = (await reply.json())["data"][0]["id"]
        return name


async def wait_ready(server: Server, limit_s: float) -> None:
    """Wait until a started server has answered one request."""
    deadline = time.monotonic() + limit_s
    problem = "never answered"
    while time.monotonic() < deadline:
        if not server.alive:
            raise StartError(f"{server.spec.name} ended:\n{server.log_tail()}")
        try:
            server.model_name = server.model_name or await _model_name(server)
            await complete(server, "def main():", 4)
            return
        except (aiohttp.ClientError, TimeoutError, OSError, LookupError, ValueError) as error:
            problem = repr(error)
        await asyncio.sleep(POLL_S)
    raise StartError(f"{server.spec.name} did not start ({problem}):\n{server.log_tail()}")
