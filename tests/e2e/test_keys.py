"""Keys in front of a whole daemon: who comes in, at what priority, and whose cache is found."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.config.keys import hash_of, new_key
from tests.e2e.live import LiveDaemon
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S

ALICE, BOB = new_key(), new_key()
CONFIG = f"""\
[scheduler]
policy = "priority"

[[key]]
name = "alice"
hash = "{hash_of(ALICE)}"
priority = 4

[[key]]
name = "bob"
hash = "{hash_of(BOB)}"
"""


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(daemon: LiveDaemon, key: str, num_tokens: int) -> dict[str, Any]:
    """The usage of an answer to a prompt that is always the same."""
    body = {"model": "tiny", "prompt": list(range(5, 105)), "ignore_eos": True}
    async with (
        aiohttp.ClientSession(daemon.url, headers=bearer(key)) as http,
        http.post("/v1/completions", json={**body, "max_tokens": num_tokens}) as response,
    ):
        assert response.status == 200, await response.text()
        usage: dict[str, Any] = (await response.json())["usage"]
        return usage


async def status(daemon: LiveDaemon, key: str) -> int:
    async with (
        aiohttp.ClientSession(daemon.url, headers=bearer(key)) as http,
        http.get("/v1/models") as response,
    ):
        return response.status


@pytest.mark.soak
async def test_keys_in_front_of_a_daemon(tmp_path: Path) -> None:
    folder, file = tiny_folder(tmp_path / "tiny"), tmp_path / "llmd.toml"
    file.write_text(CONFIG)
    with LiveDaemon("--config", str(file), "--model", str(folder)) as daemon:
        assert [await status(daemon, key) for key in (ALICE, BOB, "x")] == [200, 200, 401]

        cached = [await ask(daemon, key, 4) for key in (ALICE, ALICE, BOB, BOB)]
        found = [usage["prompt_tokens_details"]["cached_tokens"] for usage in cached]
        assert found[1] == found[3] > 0 == found[0] == found[2]

        asking = [asyncio.create_task(ask(daemon, key, 1500)) for key in (ALICE, BOB)]
        async with asyncio.timeout(HANG_S):
            while len(rows := daemon.snapshot().sequences) < 2:
                await asyncio.sleep(0.01)
        assert sorted(row.priority for row in rows) == [0, 4]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

        # A successor of the API process knows the keys before it lets anybody in.
        os.kill(daemon.children()["daemon.api"], signal.SIGKILL)
        async with asyncio.timeout(HANG_S):
            while True:
                try:
                    seen = await status(daemon, "x")
                except aiohttp.ClientError:
                    await asyncio.sleep(0.02)
                    continue
                assert seen in {401, 503}
                if seen == 401:
                    break
        assert await status(daemon, BOB) == 200
        text = daemon.text()
    for key in (ALICE, BOB):
        assert key not in text and hash_of(key) not in text
