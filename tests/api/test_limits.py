"""Clients that send too slowly, too much, or nothing, and those that do not read their answers."""

import asyncio
import gzip
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from daemon.protocol.api import AbortRequest, Generate
from tests.api.scripted import MODEL, ScriptedRuntime
from tests.api.test_disconnect import forever, quiet, raw
from tests.api.waiting import until_ready
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMIT_BYTES = 1_000_000
SOON_S = 9.0
"""Before `header_timeout_s` would close what was not closed."""
MAX_CONNECTIONS = 60
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def strict(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A process whose patience is short."""
    async with ScriptedRuntime(
        folder,
        body_limit_bytes=LIMIT_BYTES,
        max_connections=MAX_CONNECTIONS,
        header_timeout_s=0.2,
        body_timeout_s=0.2,
        idle_timeout_s=0.4,
        stall_timeout_s=0.2,
    ) as runtime:
        await until_ready(runtime.url)
        yield runtime


@pytest.fixture
def runtime(strict: ScriptedRuntime) -> ScriptedRuntime:
    """The process with a fresh script."""
    strict.reset()
    return strict


async def connected(runtime: ScriptedRuntime) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection."""
    return await asyncio.open_connection("127.0.0.1", runtime.port)


async def refusal(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and code of an answer in the shape of errors."""
    async with asyncio.timeout(HANG_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None and b"Server: llmd\r\n" in head
        error = json.loads(await reader.readexactly(int(length[1])))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


async def closed_after(reader: asyncio.StreamReader) -> float:
    """Seconds until the server closes; what it still says is dropped."""
    began = time.monotonic()
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                if not await reader.read(65536):
                    break
            except ConnectionError:  # reset, or a broken pipe while the request is still sent
                break
    return time.monotonic() - began


def resident_kib(runtime: ScriptedRuntime, what: str = "VmRSS") -> int:
    """Resident memory of the process, or its peak."""
    status = Path(f"/proc/{runtime.process.pid}/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0])


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET /health HTTP/1.1\r\nHost:"])
async def test_headers_that_do_not_come(runtime: ScriptedRuntime, sent: bytes):
    reader, writer = await connected(runtime)
    writer.write(sent)
    assert await closed_after(reader) >= 0.15
    writer.close()


async def test_dripped_headers(runtime: ScriptedRuntime):
    """A byte now and then does not buy time, on a connection that was used before either."""
    reader, writer = await connected(runtime)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b'"detail"')
    closing = asyncio.ensure_future(closed_after(reader))
    for byte in b"GET /health HTTP/1.1\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaa":
        writer.write(bytes([byte]))
        await asyncio.sleep(0.05)
        if closing.done():
            break
    assert closing.done()
    writer.close()


async def test_an_idle_connection(runtime: ScriptedRuntime):
    reader, writer = await connected(runtime)
    for _ in range(2):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"}")
        await asyncio.sleep(0.25)  # longer than headers may take: the connection only idles
    assert await closed_after(reader) >= 0.1
    writer.close()


async def test_a_slow_body(runtime: ScriptedRuntime):
    reader, writer = await connected(runtime)
    writer.write(POST + b"Content-Length: 1000\r\n\r\n")
    waiting = asyncio.ensure_future(refusal(reader))
    for _ in range(40):
        writer.write(b"x")
        await asyncio.sleep(0.05)
        if waiting.done():
            break
    assert await waiting == (408, "body_timeout")
    writer.close()
    assert not runtime.received


async def test_a_body_that_is_too_large_is_not_read(runtime: ScriptedRuntime):
    reader, writer = await connected(runtime)
    writer.write(POST + b"Content-Length: %d\r\n\r\n{" % (LIMIT_BYTES + 1))
    assert await refusal(reader) == (413, "body_too_large")
    writer.close()


async def test_a_body_without_an_end(runtime: ScriptedRuntime):
    before = resident_kib(runtime)
    reader, writer = await connected(runtime)
    waiting = asyncio.ensure_future(refusal(reader))
    writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    for _ in range(1000):  # 64 MiB
        writer.write(chunk)
        try:
            await writer.drain()
        except ConnectionError:
            break
    assert await waiting == (413, "body_too_large")
    writer.transport.abort()
    assert resident_kib(runtime) - before < 16 * 1024


async def test_compressed_bodies(runtime: ScriptedRuntime):
    before = resident_kib(runtime, "VmHWM")
    bomb = gzip.compress(b"x" * 64_000_000, 9)
    async with aiohttp.ClientSession(runtime.url) as http:
        for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"):
            headers = {"Content-Encoding": encoding}
            async with http.post("/v1/completions", data=bomb, headers=headers) as response:
                assert response.status == 415
                assert (await response.json())["error"]["code"] == "unsupported_encoding"
        body = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 2}).encode()
        headers = {"Content-Encoding": "identity"}
        async with http.post("/v1/completions", data=body, headers=headers) as response:
            assert response.status == 200
    assert resident_kib(runtime, "VmHWM") - before < 16 * 1024


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(100_000)),
        b"GET /health HTTP/1.1\r\nX-Long: " + b"y" * 5_000_000 + b"\r\n",
        b"GET /" + b"a" * 5_000_000 + b" HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
        b"GET /evil-marker\x00 HTTP/1.1\r\nHost: localhost\r\n",
        b"evil-marker\r\nINFO: forged line\r\n",
        POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
    ],
    ids=[
        "many headers",
        "long header",
        "long path",
        "TLS",
        "zero byte",
        "no method",
        "two lengths",
    ],
)
async def test_what_is_no_http(runtime: ScriptedRuntime, head: bytes):
    before = resident_kib(runtime)
    reader, writer = await connected(runtime)
    writer.write(head + b"\r\n")
    assert await refusal(reader) == (400, "invalid_http")
    assert await closed_after(reader) < SOON_S
    writer.transport.abort()
    assert "evil-marker" not in runtime.said() and "forged" not in runtime.said()
    assert resident_kib(runtime) - before < 16 * 1024


async def test_as_many_connections_as_there_may_be(runtime: ScriptedRuntime):
    runtime.paused = True
    busy = [await connected(runtime) for _ in range(MAX_CONNECTIONS)]
    for _reader, one in busy:
        one.write(raw({"stream": True}))
    await runtime.until(Generate, MAX_CONNECTIONS)
    reader, writer = await connected(runtime)
    assert await refusal(reader) == (503, "too_many_connections")
    assert await closed_after(reader) < SOON_S
    for one in (writer, *(one for _reader, one in busy)):
        one.close()
    await runtime.until(AbortRequest, MAX_CONNECTIONS)
    async with aiohttp.ClientSession(runtime.url) as http, http.get("/health") as response:
        assert response.status == 200


def deaf(runtime: ScriptedRuntime, body: dict[str, Any]) -> socket.socket:
    """A client that asks and never reads, with as little room for answers as the kernel gives."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", runtime.port))
    sock.sendall(raw(body))
    return sock


async def test_a_stream_that_is_not_read_is_cut(runtime: ScriptedRuntime):
    """Its memory is bounded, its answers end, and its neighbour notices nothing."""
    runtime.script = forever
    before = resident_kib(runtime)
    sock = deaf(runtime, {"stream": True, "n": 64})
    (asked,) = await runtime.until(Generate)
    async with aiohttp.ClientSession(runtime.url) as http:
        body = {"model": MODEL, "prompt": "hello", "max_tokens": 20, "stream": True}
        async with http.post("/v1/completions", json=body) as response:
            await response.content.readline()
            (abort,) = await runtime.until(AbortRequest)
            assert abort.request == asked.request
            assert resident_kib(runtime) - before < 16 * 1024
    await quiet(runtime)
    sock.close()


async def test_an_answer_that_is_not_read_is_cut(runtime: ScriptedRuntime):
    body = {"n": 50, "max_tokens": 200, "prompt": "hello " * 5, "logprobs": 20}
    runtime.script = lambda message, _stream: (
        (message.tokens[i % len(message.tokens)], 2 if i == 199 else 0) for i in range(200)
    )
    sock = deaf(runtime, body)
    await runtime.until(Generate)
    await quiet(runtime)
    descriptors = Path(f"/proc/{runtime.process.pid}/fd")
    before = len(list(descriptors.iterdir()))
    async with asyncio.timeout(HANG_S):
        while len(list(descriptors.iterdir())) >= before:
            await asyncio.sleep(0.05)
    sock.close()


async def evil(runtime: ScriptedRuntime) -> None:
    """Requests with text that must not be logged wherever text can be."""
    async with aiohttp.ClientSession(runtime.url) as http:
        headers = {"Authorization": "Bearer evil-marker", "User-Agent": "evil-marker"}
        body = {"model": "evil-marker", "prompt": "evil-marker", "evil-marker": 1}
        for method, path in (("GET", "/evil-marker%0aINFO"), ("POST", "/v1/completions")):
            async with http.request(method, path, json=body, headers=headers) as response:
                assert response.status in {400, 404}
        async with http.get("/health", headers={"Host": "evil-marker"}) as response:
            assert response.status == 403
        async with http.get("/health", headers={"Origin": "http://evil-marker"}) as response:
            assert response.status == 403


async def flood(runtime: ScriptedRuntime) -> None:
    """Clients that leave in the middle of their answers, 120 of them."""
    runtime.script = forever
    for number in range(1, 4):
        socks = [deaf(runtime, {"stream": True}) for _ in range(40)]
        await runtime.until(Generate, 40 * number)
        for sock in socks:
            sock.close()
        await runtime.until(AbortRequest, 40 * number)
    await quiet(runtime)


async def break_one(runtime: ScriptedRuntime) -> None:
    """A request whose tokens are none: its line is written while no handler runs."""
    runtime.script = lambda _message, _stream: iter([(40, 0), (-1, 0), (41, 2)])
    headers, body = {"X-Request-Id": "mine-1"}, {"model": MODEL, "prompt": "hello"}
    async with (
        aiohttp.ClientSession(runtime.url, headers=headers) as http,
        http.post("/v1/completions", json=body) as response,
    ):
        assert response.status == 500


async def test_the_log(folder: Path):
    """What clients do is a line a second at most, with nothing of theirs; what goes wrong with one
    request is a line that names it.
    """
    async with ScriptedRuntime(folder) as runtime:
        await until_ready(runtime.url)
        began = time.monotonic()
        await evil(runtime)
        await flood(runtime)
        await asyncio.sleep(1.1)
        said, lines = runtime.said(), runtime.said().splitlines()
        assert 1 <= len(lines) <= time.monotonic() - began + 1
        assert sum(map(int, re.findall(r"(\d+) clients left before", said))) == 120
        assert "1 request refused: host_not_allowed" in said
        assert "evil-marker" not in said
        runtime.may_complain = True
        await break_one(runtime)
        async with asyncio.timeout(HANG_S):  # a thread of its own writes lines
            while "could not be delivered" not in runtime.said():
                await asyncio.sleep(0.01)
        (line,) = [one for one in runtime.said().splitlines() if "could not be delivered" in one]
        assert "[mine-1]" in line
