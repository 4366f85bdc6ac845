"""`/status`: typed as it is described, and true of what the runtime said."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from daemon.api.front.status import RATE_MESSAGES, ServerStatus
from daemon.api.model import CurrentModel
from daemon.api.replies.answers import InstanceBusy, StatusAnswer
from daemon.core.values.snapshot import Counters
from daemon.protocol.api import Gauges
from daemon.protocol.control import GpuStatus
from tests.api.scripted import MAX_LEN, MODEL, ScriptedRuntime
from tests.api.test_metrics import GAUGES, GPU
from tests.api.waiting import until_ready
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def process(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A process of this module's own: its counts begin at none."""
    async with ScriptedRuntime(folder, body_limit_bytes=200_000) as runtime:
        await until_ready(runtime.url)
        yield runtime


async def ask(http: aiohttp.ClientSession) -> StatusAnswer:
    async with http.get("/status") as got:
        assert got.status == 200 and got.content_type == "application/json"
        return msgspec.json.decode(await got.read(), type=StatusAnswer)


async def test_before_the_runtime_has_counted_anything(runtime: ScriptedRuntime, http):
    said = await ask(http)
    assert (said.model, said.ready, said.detail) == (MODEL, True, "ready")
    assert said.max_model_len == MAX_LEN
    assert (said.running, said.waiting, said.kv_total_bytes, said.instances) == (0, 0, 0, [])


async def test_what_the_runtime_holds(runtime: ScriptedRuntime, http):
    cpu = msgspec.structs.replace(
        GPU, name="cpu0", device="cpu", running=1, kv_free=100, kv_held=0, kv_fenced=0
    )
    card = GpuStatus(name="NVIDIA H100")
    runtime.send(
        msgspec.structs.replace(GAUGES, instances=(GPU, cpu), gpus=(card, None), uptime_s=90.5)
    )
    async with asyncio.timeout(HANG_S):
        while not (said := await ask(http)).instances:
            await asyncio.sleep(0.01)
    first = InstanceBusy("gpu0", "cuda:0", "NVIDIA H100", "ready", 3, 2, 40 * 4096, 100 * 4096)
    assert said.instances[0] == first
    assert (said.instances[1].device_name, said.instances[1].kv_used_bytes) == (None, 0)
    assert (said.running, said.waiting, said.uptime_s) == (4, 6, 90.5)
    assert (said.kv_used_bytes, said.kv_total_bytes) == (40 * 4096, 200 * 4096)


async def test_tokens_per_second_are_those_of_late():
    with ThreadPoolExecutor(1) as pool:
        status = ServerStatus(CurrentModel(MODEL, pool))

        def rate_after(num_tokens: int, now_s: float) -> float:
            status.update(Gauges(Counters(output_tokens=num_tokens), 0, (), 0.0), now_s)
            return status.answer(False).output_tokens_per_s

        assert rate_after(1000, 10.0) == 0.0  # of how long, nobody knows
        assert rate_after(1030, 11.5) == 20.0
        assert rate_after(1050, 12.0) == 25.0
        rates = [rate_after(1050, 13.0 + second) for second in range(RATE_MESSAGES)]
        assert rates == sorted(rates, reverse=True) and rates[-1] == 0.0
