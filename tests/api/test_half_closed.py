"""A client that sends nothing more still gets its answer; one that is gone ends its request."""

import asyncio
import json
import socket
import struct

import pytest

from daemon.runtime.protocol import Abort, Generate
from tests.api.scripted import ScriptedRuntime
from tests.api.test_disconnect import forever, raw

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def connected(
    runtime: ScriptedRuntime, request: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    writer.write(request)
    return reader, writer


async def whole(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes, which it does; without interim answers."""
    async with asyncio.timeout(20):
        answer = await reader.read()
    while answer.startswith(CONTINUE):
        answer = answer.removeprefix(CONTINUE)
    return answer


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_its_answer_is_whole(
    runtime: ScriptedRuntime, stream: bool, at_once: bool, version: str
) -> None:
    runtime.interval_s = 0.05  # the answer takes longer than two looks at whether it is there
    request = raw({"stream": stream, "max_tokens": 60}, version)
    reader, writer = await connected(runtime, request)
    if not at_once:
        await runtime.until(Generate)
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
        assert json.loads(body)["usage"]["completion_tokens"] == 60
    assert not runtime.of(Abort)


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
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()
    assert not runtime.received


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "reset", "half, then close", "half, then reset"])
@pytest.mark.parametrize("waiting", [False, True])
async def test_one_that_is_gone_ends_its_request(
    runtime: ScriptedRuntime, stream: bool, how: str, waiting: bool
) -> None:
    runtime.script, runtime.paused = forever, waiting
    _reader, writer = await connected(runtime, raw({"stream": stream}))
    await runtime.until(Generate)
    if how.startswith("half"):
        writer.write_eof()
        await asyncio.sleep(0.05)
    if how.endswith("reset"):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
    await runtime.until(Abort, timeout_s=10)
    assert [abort.request for abort in runtime.of(Abort)] == [runtime.of(Generate)[0].request]
