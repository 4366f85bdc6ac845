"""Coming up, draining, losing the runtime, and clients that do nothing."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
import pytest_asyncio

from daemon.api import model
from daemon.protocol.api import AbortRequest, Generate, Serving, Settings
from tests.api.folder import build
from tests.api.scripted import MODEL, ScriptedRuntime
from tests.api.test_disconnect import forever, raw
from tests.api.waiting import until_ready
from tests.hangs import HANG_S

BODY = {"model": MODEL, "prompt": "hello", "stream": True, "max_tokens": 30}


@pytest_asyncio.fixture
async def own(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A process that a test may end."""
    async with ScriptedRuntime(folder, keepalive_s=0.2) as runtime:
        await until_ready(runtime.url)
        yield runtime


async def test_ready_only_when_a_first_token_is_possible(own: ScriptedRuntime):
    async with aiohttp.ClientSession(own.url) as http:
        own.change(ready=False, status="loading weights 40 %")
        await asyncio.sleep(0.1)
        async with http.get("/ready") as response:
            assert response.status == 503
            assert (await response.json())["detail"] == "loading weights 40 %"
        async with http.get("/health") as response:
            assert response.status == 200
            assert (await response.json())["last_step_age_s"] >= 0.5
        async with http.post("/v1/completions", json=BODY) as response:
            assert response.status == 503 and int(response.headers["Retry-After"]) >= 1
            error = (await response.json())["error"]
            assert error["code"] == "not_ready" and "loading weights" in error["message"]
        own.change(ready=True, draining=True)
        await asyncio.sleep(0.1)
        async with http.post("/v1/completions", json=BODY) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "draining"
    assert not own.received


async def test_health_tells_of_work_that_makes_no_progress(own: ScriptedRuntime):
    async with aiohttp.ClientSession(own.url) as http:
        own.change(fault="worker cpu has not answered for 75 s")
        await asyncio.sleep(0.1)
        async with http.get("/health") as response:
            assert response.status == 503
            body = await response.json()
            assert (body["status"], body["detail"]) == ("stuck", own.serving.fault)
        own.change(fault="")
        await asyncio.sleep(0.1)
        async with http.get("/health") as response:
            assert response.status == 200 and (await response.json())["status"] == "alive"


def test_health_tells_of_a_daemon_that_fell_silent(monkeypatch: pytest.MonkeyPatch):
    clock = [100.0]
    monkeypatch.setattr(model, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    seen = model.CurrentModel("tiny", ThreadPoolExecutor(1))
    seen.update(Serving("tiny", "", True, False, 1, 1, 4, 1, "ready"))
    clock[0] += model.SILENT_S - 1
    assert seen.fault == ""
    clock[0] += 2
    assert seen.fault == "nothing was heard from the daemon for 11 s"


async def test_settings_change_while_it_runs(own: ScriptedRuntime):
    """Its own interval is 0.2 s: with a long one, no comment comes any more."""
    own.interval_s = 0.8
    own.send(Settings(keepalive_s=60.0, log_level="error"))
    await asyncio.sleep(0.1)
    async with (
        aiohttp.ClientSession(own.url) as http,
        http.post("/v1/completions", json={**BODY, "max_tokens": 2}) as response,
    ):
        assert "\n: " not in await response.text()


async def test_keep_alive_comments(own: ScriptedRuntime):
    own.interval_s = 0.6
    async with (
        aiohttp.ClientSession(own.url) as http,
        http.post("/v1/completions", json={**BODY, "max_tokens": 3}) as response,
    ):
        text = await response.text()
    before, between, _after = re.split(r'data: .*"text":".*\n\n', text)[:3]
    assert before.count(": keep-alive\n\n") >= 2
    assert between.count(": keep-alive\n\n") >= 2
    assert text.endswith("data: [DONE]\n\n")


async def test_a_queued_stream_is_kept_alive_too(own: ScriptedRuntime):
    own.paused = True
    async with (
        aiohttp.ClientSession(own.url) as http,
        http.post("/v1/completions", json=BODY) as response,
    ):
        assert response.status == 200
        assert await response.content.readline() == b": keep-alive\n"
        own.paused = False
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_drain_finishes_what_is_open(own: ScriptedRuntime):
    own.interval_s = 0.02
    async with (
        aiohttp.ClientSession(own.url) as http,
        http.post("/v1/completions", json=BODY) as response,
    ):
        await response.content.readline()
        own.signal(signal.SIGINT)  # the parent's business
        await asyncio.sleep(0.05)
        own.signal(signal.SIGTERM)
        await asyncio.sleep(0.05)
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get("/health", headers={"Connection": "close"})
        assert own.process.poll() is None
        assert (await response.text()).endswith("data: [DONE]\n\n")
    assert await own.exit_status(HANG_S) == 0
    assert not own.of(AbortRequest)


async def test_a_lost_runtime_ends_streams_with_an_error(own: ScriptedRuntime):
    own.script, own.interval_s = forever, 0.02
    async with aiohttp.ClientSession(own.url) as http:
        stream = await http.post("/v1/completions", json=BODY)
        whole = asyncio.create_task(http.post("/v1/completions", json={**BODY, "stream": False}))
        await own.until(Generate, 2)
        await stream.content.readline()
        own.channel.close()
        text = await stream.text()
        assert '"code":"not_ready"' in text and "the runtime is gone" in text
        async with await whole as response:
            assert response.status == 503
    assert await own.exit_status(HANG_S) == 0


async def test_the_api_does_not_outlive_its_channel(own: ScriptedRuntime):
    own.channel.close()
    assert await own.exit_status(HANG_S) == 0


async def test_a_model_without_a_template(tmp_path: Path):
    async with ScriptedRuntime(build(tmp_path / "plain", with_template=False)) as runtime:
        await until_ready(runtime.url)
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
        async with aiohttp.ClientSession(runtime.url) as http:
            async with http.post("/v1/chat/completions", json=chat) as response:
                assert response.status == 400
                assert "no usable chat template" in (await response.json())["error"]["message"]
            async with http.post("/v1/completions", json=BODY) as response:
                assert response.status == 200


async def test_a_broken_tokenizer_is_said(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{")
    async with ScriptedRuntime(tmp_path) as runtime, aiohttp.ClientSession(runtime.url) as http:
        runtime.may_complain = True
        async with asyncio.timeout(HANG_S):
            while True:
                async with http.get("/ready") as response:
                    assert response.status == 503
                    if "tokenizer cannot be read" in (await response.json())["detail"]:
                        return
                await asyncio.sleep(0.02)


async def test_a_long_prompt_does_not_block_others(folder: Path):
    async with ScriptedRuntime(folder) as runtime:
        runtime.change(max_len=1_000_000, context_len=1_000_000)
        await until_ready(runtime.url)
        async with aiohttp.ClientSession(runtime.url) as http:
            body = {"model": MODEL, "prompt": "one two three " * 70_000, "max_tokens": 1}
            long = asyncio.create_task(http.post("/v1/completions", json=body))
            waits = []
            while not long.done():
                began = time.monotonic()
                async with http.get("/health") as response:
                    assert response.status == 200
                waits.append(time.monotonic() - began)
            assert (await long).status == 200
            assert len(waits) > 3
            print(f"{len(waits)} probes, longest {max(waits) * 1e3:.0f} ms")
            assert sorted(waits)[-2] < sum(waits) / 2, "a prompt that blocks all is most of it"


async def test_half_a_body_is_no_request(own: ScriptedRuntime):
    _reader, writer = await asyncio.open_connection("127.0.0.1", own.port)
    writer.write(raw({})[:-5])
    await asyncio.sleep(0.1)
    writer.close()
    await asyncio.sleep(0.1)
    assert not own.received
