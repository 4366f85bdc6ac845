"""A client that goes away, at any stage, costs one Abort and leaves nothing behind."""

import asyncio
import itertools
import json
import random
from pathlib import Path

import pytest

from daemon.protocol.api import AbortRequest, Generate
from tests.api.scripted import MODEL, ScriptedRuntime
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="session")


def forever(message: Generate, _stream: int):
    """Never ends by itself."""
    for token in itertools.cycle(message.tokens.tolist()):
        yield token, 0


def raw(body: dict[str, object], version: str = "1.1") -> bytes:
    """A whole HTTP request."""
    data = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 200, **body}).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def num_descriptors(runtime: ScriptedRuntime) -> int:
    """Descriptors that the API process holds open."""
    return len(list(Path(f"/proc/{runtime.process.pid}/fd").iterdir()))


async def quiet(runtime: ScriptedRuntime) -> None:
    """Wait until the script feeds nothing."""
    async with asyncio.timeout(HANG_S):
        while runtime.num_running:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["waiting", "running"])
async def test_one_abort(runtime: ScriptedRuntime, stream: bool, stage: str):
    runtime.script, runtime.paused = forever, stage == "waiting"
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    writer.write(raw({"stream": stream, "n": 2}))
    await runtime.until(Generate)
    if stage == "running":
        await asyncio.sleep(0.05)
        if stream:
            assert b"200 OK" in await reader.readline()
    writer.close()
    await runtime.until(AbortRequest)
    await asyncio.sleep(0.05)
    assert [abort.request for abort in runtime.of(AbortRequest)] == [
        runtime.of(Generate)[0].request
    ]
    assert runtime.num_running == 0


async def test_many_at_any_moment(runtime: ScriptedRuntime):
    chance, before = random.Random(1), num_descriptors(runtime)

    async def visit(seed: int) -> None:
        _reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
        data = raw({"stream": bool(seed % 2), "n": 1 + seed % 3})
        writer.write(data[: chance.choice([20, len(data) - 3, len(data)])])
        await asyncio.sleep(chance.random() * 0.1)
        writer.transport.abort() if seed % 5 else writer.close()

    runtime.script = forever
    for _round in range(8):
        await asyncio.gather(*(visit(seed) for seed in range(50)))
    async with asyncio.timeout(HANG_S):
        while len(runtime.of(AbortRequest)) < len(runtime.of(Generate)) or runtime.num_running:
            await asyncio.sleep(0.01)
    asked = sorted(message.request for message in runtime.of(Generate))
    assert len(asked) > 50
    assert (
        sorted(abort.request for abort in runtime.of(AbortRequest)) == asked == sorted(set(asked))
    )
    async with asyncio.timeout(HANG_S):
        while num_descriptors(runtime) > before + 2:
            await asyncio.sleep(0.01)


async def test_a_finished_answer_is_not_aborted(runtime: ScriptedRuntime, http):
    body = {"model": MODEL, "prompt": ["hello", "one"], "stream": True, "n": 2}
    async with http.post("/v1/completions", json=body) as response:
        await response.read()
    await asyncio.sleep(0.05)
    assert runtime.of(Generate) and not runtime.of(AbortRequest)


async def test_slow_reader_is_held_back_and_loses_nothing(runtime: ScriptedRuntime):
    texts = []
    runtime.script = lambda message, _stream: (
        (token, 1 if i == 199 else 0)
        for i, token in enumerate(itertools.islice(itertools.cycle([40, 41, 42]), 200))
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port, limit=65536)
    writer.write(raw({"stream": True, "n": 32, "max_tokens": 200}))
    await runtime.until(Generate)
    await quiet(runtime)  # the script is through; most events lie in the process or its socket
    async with asyncio.timeout(HANG_S):
        while (line := await reader.readline()) != b"0\r\n":
            if line.startswith(b"data: {"):
                texts.append(json.loads(line[6:])["choices"][0])
    writer.close()
    assert len([t for t in texts if t["finish_reason"]]) == 32
    assert len(texts) == 32 * 200
    assert not runtime.of(AbortRequest)


async def test_http_1_0_gets_an_unframed_stream(runtime: ScriptedRuntime):
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    writer.write(raw({"stream": True, "max_tokens": 3}, version="1.0"))
    answer = await asyncio.wait_for(reader.read(), HANG_S)
    writer.close()
    assert b"chunked" not in answer.lower()
    assert answer.split(b"\r\n\r\n", 1)[1].startswith(b"data: {")
    assert answer.endswith(b"data: [DONE]\n\n")


async def test_pipelined_and_reused_connections(runtime: ScriptedRuntime, http):
    for _time in range(3):
        async with http.post(
            "/v1/completions", json={"model": MODEL, "prompt": "hello", "stream": True}
        ) as response:
            assert (await response.text()).endswith("data: [DONE]\n\n")
