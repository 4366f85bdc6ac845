"""Thousands of streams at once: what each costs, and that nothing is left of them."""

import asyncio
import resource
import socket
from pathlib import Path

import pytest

from daemon.protocol.api import AbortRequest, Generate
from tests.api.scripted import ScriptedRuntime
from tests.api.test_disconnect import forever, num_descriptors, quiet, raw
from tests.api.test_limits import resident_kib
from tests.api.waiting import until_ready
from tests.hangs import HANG_S

NUM_STREAMS = 4000
KIB_EACH = 40
SPARE_DESCRIPTORS = 200


@pytest.mark.soak
async def test_four_thousand_streams(folder: Path):
    needed = NUM_STREAMS + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} descriptors are needed, {hard} may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    async with ScriptedRuntime(folder) as runtime:
        runtime.script, runtime.interval_s = forever, 1.0
        await until_ready(runtime.url)
        descriptors, before_kib = num_descriptors(runtime), resident_kib(runtime)
        socks = []
        for number in range(NUM_STREAMS):
            socks.append(socket.create_connection(("127.0.0.1", runtime.port)))
            socks[-1].sendall(raw({"stream": True}))
            if number % 100 == 0:
                await asyncio.sleep(0)
        await runtime.until(Generate, NUM_STREAMS)
        await asyncio.sleep(5)
        kib = (resident_kib(runtime) - before_kib) / NUM_STREAMS
        print(f"{kib:.1f} KiB a stream")
        for sock in socks:
            sock.close()
        await runtime.until(AbortRequest, NUM_STREAMS)
        await quiet(runtime)
        async with asyncio.timeout(HANG_S):
            while num_descriptors(runtime) > descriptors + 2:
                await asyncio.sleep(0.05)
        assert kib <= KIB_EACH
