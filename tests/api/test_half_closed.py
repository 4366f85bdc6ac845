"""A client that sends nothing more still gets its answer; one that is gone ends its request."""

import asyncio
import itertools
import json
import socket
import struct

import pytest

from daemon.protocol.api import AbortRequest, Generate
from tests.api.scripted import ScriptedRuntime
from tests.api.test_disconnect import forever, raw
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def connected(
    runtime: ScriptedRuntime, request: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    writer.write(request)
    return reader, writer


async def whole(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes, which it does; without interim answers."""
    async with asyncio.timeout(HANG_S):
        answer = await reader.read()
    while answer.startswith(CONTINUE):
        answer = answer.removeprefix(CONTINUE)
    return answer


async def answered(runtime: ScriptedRuntime, stream: bool, at_once: bool, version: str) -> None:
    """Fail unless a half-closed client's answer is whole."""
    reader, writer = await connected(runtime, raw({"stream": stream, "max_tokens": 30}, version))
    if not at_once:
        await asyncio.sleep(0.2)
    writer.write_eof()
    answer = await whole(reader)
    writer.close()
    assert answer.startswith(b"HTTP/1.") and b" 200 OK\r\n" in answer
    body = answer.split(b"\r\n\r\n", 1)[1]
    if stream:
        assert body.count(b'"finish_reason":"length"') == 1
        assert b"data: [DONE]\n\n" in body
        assert version == "1.0" or body.endswith(b"0\r\n\r\n")
    else:
        assert json.loads(body)["usage"]["completion_tokens"] == 30


async def test_its_answer_is_whole(runtime: ScriptedRuntime) -> None:
    runtime.interval_s = 0.05  # the answer takes longer than a look at whether it is there
    cases = itertools.product((False, True), (False, True), ("1.0", "1.1"))
    await asyncio.gather(*(answered(runtime, *case) for case in cases))
    assert not runtime.of(AbortRequest)


async def test_pipelined_requests_are_all_answered(runtime: ScriptedRuntime) -> None:
    reader, writer = await connected(runtime, raw({"max_tokens": 3}) * 3)
    writer.write_eof()
    answer = await whole(reader)
    writer.close()
    assert answer.count(b" 200 OK\r\n") == 3


async def test_a_request_that_is_cut_short_is_dropped(runtime: ScriptedRuntime) -> None:
    for request in (raw({})[:-5], b"GET /health HT", b""):
        reader, writer = await connected(runtime, request)
        writer.write_eof()
        async with asyncio.timeout(HANG_S):
            await reader.read()
        writer.close()
    assert not runtime.received


async def leave(runtime: ScriptedRuntime, stream: bool, how: str) -> None:
    """Ask, and be gone."""
    _reader, writer = await connected(runtime, raw({"stream": stream}))
    await asyncio.sleep(0.3)
    if how.startswith("half"):
        writer.write_eof()
        await asyncio.sleep(0.05)
    if how.endswith("reset"):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.soak
async def test_an_old_client_that_is_gone_ends_its_request_once_its_kernel_forgets_it(
    runtime: ScriptedRuntime,
) -> None:
    # HTTP/1.0 knows no interim answers, and proxies still speak it.
    runtime.script, runtime.paused = forever, True
    _reader, writer = await connected(runtime, raw({}, "1.0"))
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 1)  # a second, not a minute
    await runtime.until(Generate)
    writer.close()
    await runtime.until(AbortRequest)


@pytest.mark.parametrize("waiting", [pytest.param(False, marks=pytest.mark.soak), True])
async def test_those_that_are_gone_end_their_requests(
    runtime: ScriptedRuntime, waiting: bool
) -> None:
    runtime.script, runtime.paused = forever, waiting
    hows = ("close", "reset", "half, then close", "half, then reset")
    cases = list(itertools.product((False, True), hows))
    await asyncio.gather(*(leave(runtime, *case) for case in cases))
    await runtime.until(AbortRequest, len(cases))
    asked = sorted(generate.request for generate in runtime.of(Generate))
    assert sorted(abort.request for abort in runtime.of(AbortRequest)) == asked
    assert len(asked) == len(cases)
