"""The HTTP side: one session, any number of connections, one streamed answer per call."""

from time import perf_counter
from types import SimpleNamespace
from typing import Any, Self

import aiohttp

from daemon.client.address import base_url, refusal_text
from daemon.client.sse import UNREADABLE, EventParser
from daemon.lab.bench.choices import EventSink
from daemon.lab.bench.errors import BenchError
from daemon.lab.report.records import Outcome

IDLE_CONNECTION_S = 2.0
"""Shorter than servers keep idle connections, so that no request meets one just being closed."""

READ_BYTES = 1 << 18
TOO_MANY = 429


class Client:
    """Talks to one endpoint; used as a context manager inside an event loop."""

    def __init__(self, url: str, api_key: str, timeout_s: float) -> None:
        self.url = base_url(url)
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_note_sent)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._timeout_s or None, sock_connect=None),
            read_bufsize=READ_BYTES,
            trace_configs=[trace],
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def stream(self, path: str, body: bytes, answer: EventSink) -> None:
        """Send a request and follow its stream to the end; an error fails its answer."""
        try:
            async with self._session.post(
                self.url + path, data=body, trace_request_ctx=answer
            ) as response:
                if response.status == 200:
                    await _follow(response, answer)
                else:
                    outcome = Outcome.REJECTED if response.status == TOO_MANY else Outcome.FAILED
                    answer.fail(_refusal(response.status, await response.read()), outcome)
        except TimeoutError:
            answer.fail(f"no whole answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            answer.fail(f"{type(error).__name__}: {error}")
        except UNREADABLE as error:
            answer.fail(f"an event that is not OpenAI's: {error}")
        finally:
            answer.ended_s = perf_counter()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises BenchError where no server answers."""
        return await self._whole("GET", path, None)

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of an answer that is not streamed. Raises BenchError."""
        return await self._whole("POST", path, body)

    async def _whole(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        url = self.url + path
        try:
            async with self._session.request(method, url, data=body) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError) as error:  # OSError: a timeout too
            raise BenchError(f"{method} {url}: {error or type(error).__name__}") from error


def _refusal(status: int, body: bytes) -> str:
    return f"HTTP {status}: {refusal_text(body)}"


async def _follow(response: aiohttp.ClientResponse, answer: EventSink) -> None:
    parser = EventParser()
    async for data in response.content.iter_any():
        now_s = perf_counter()
        for event in parser.feed(data):
            answer.take(event, now_s)
    answer.close()


async def _note_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    answer = context.trace_request_ctx
    if answer is not None:
        answer.sent_s = perf_counter()
