"""Start, stop, and what happens when a process of the daemon is killed."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from daemon.api.metrics.engines import COUNTERS
from daemon.control.client import choose_policy
from daemon.core.values.actions import Deliver
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME
from daemon.lab.simulator.journal import replay
from tests.e2e.live import LiveDaemon, free_port
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


async def pieces(url: str, model: str, **fields: Any) -> AsyncIterator[dict[str, Any]]:
    """The events of one streamed completion."""
    body = {"model": model, "stream": True, "ignore_eos": True, "temperature": 0, **fields}
    async with (
        aiohttp.ClientSession(url) as session,
        session.post("/v1/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        async for line in response.content:
            data = line.decode().strip().removeprefix("data: ")
            if data.startswith("{"):
                yield json.loads(data)


async def text_of(url: str, model: str, gaps_s: list[float] | None = None, **fields: Any) -> str:
    """The whole text of one streamed completion; its last event must say why it ended.

    `gaps_s` gets the times between two pieces.
    """
    events, times_s = [], list[float]()
    async for event in pieces(url, model, **fields):
        events.append(event)
        times_s.append(time.monotonic())
    if gaps_s is not None:
        gaps_s += (after - before for before, after in pairwise(times_s))
    assert [event for event in events if "error" in event] == []
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(event["choices"][0]["text"] for event in events)


async def counted(url: str, least_tokens: int) -> dict[str, float]:
    """The runtime's counts as /metrics shows them, once so many tokens are among them."""
    async with asyncio.timeout(HANG_S), aiohttp.ClientSession(url) as session:
        while True:
            async with session.get("/metrics") as response:
                families = list(text_string_to_metric_families(await response.text()))
            found = {one.name: one.value for family in families for one in family.samples}
            if found.get("llmd:generation_tokens_total", 0) >= least_tokens:
                return {f"llmd:{n}_total": found[f"llmd:{n}_total"] for n, _ in COUNTERS.values()}
            await asyncio.sleep(0.1)


@pytest.mark.soak
async def test_a_second_sigterm_does_not_wait(folder: Path) -> None:
    with LiveDaemon("--model", str(folder), "--set", "scheduler.max_running=1") as daemon:
        model = daemon.model()["id"]
        asked = {"prompt": [5], "max_tokens": 2000}
        running = [asyncio.create_task(text_of(daemon.url, model, **asked)) for _ in range(8)]
        while daemon.snapshot().waiting < 7:
            await asyncio.sleep(0.01)
        daemon.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        daemon.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.process.wait, 15) == 0
        await asyncio.gather(*running, return_exceptions=True)


def test_a_taken_port_is_one_clear_line(folder: Path) -> None:
    with socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        command = [sys.executable, "-m", "daemon.cli.main", "serve", "--model", str(folder)]
        done = subprocess.run(
            [*command, "--port", str(port), "--socket", str(folder / "x.sock")],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


async def test_killed_processes_come_back_and_answers_stay_whole(folder: Path) -> None:
    with LiveDaemon("--model", str(folder)) as daemon:
        model = daemon.model()["id"]
        asked = {"prompt": [9, 8, 7, 6] * 10, "max_tokens": 1200}
        expected = await text_of(daemon.url, model, **asked)
        again = asyncio.create_task(text_of(daemon.url, model, **asked))
        while not any(one.num_output_tokens > 100 for one in daemon.snapshot().sequences):
            await asyncio.sleep(0.01)
        os.kill(daemon.children()["tests.nursery.worker"], signal.SIGKILL)
        assert await again == expected
        assert daemon.snapshot().counters.worker_deaths == 1
        before = await counted(daemon.url, 2400)

        children = daemon.children()
        os.kill(children["tests.nursery.worker"], signal.SIGSTOP)  # else the answer may end first
        cut = asyncio.create_task(text_of(daemon.url, model, **asked))
        while not daemon.snapshot().running:
            await asyncio.sleep(0.01)
        os.kill(children["daemon.api"], signal.SIGKILL)
        with pytest.raises((aiohttp.ClientError, AssertionError, IndexError)):
            await cut
        os.kill(children["tests.nursery.worker"], signal.SIGCONT)
        seen = daemon.idle_snapshot()
        assert seen.counters.aborted == 1
        assert not seen.instances[0].kv_used
        daemon.wait_ready()
        assert await text_of(daemon.url, model, **asked) == expected
        after = await counted(daemon.url, 3600)
        assert after["llmd:worker_deaths_total"] == 1
        assert all(after[name] >= count for name, count in before.items())


async def test_a_full_queue_answers_429_and_viewers_and_the_journal_tell_all(folder: Path) -> None:
    flags = ["--set", "scheduler.max_running=2", "--set", "scheduler.max_waiting=3"]
    with LiveDaemon("--model", str(folder), *flags) as daemon:
        num_tokens = 300 * await check_a_full_queue(daemon)
        await check_viewers_and_the_journal(daemon, num_tokens)


async def check_a_full_queue(daemon: LiveDaemon) -> int:
    """More ask at once than may wait: who is not refused gets all; how many they are."""
    body = {
        "model": daemon.model()["id"],
        "prompt": [5, 6],
        "max_tokens": 300,
        "ignore_eos": True,
    }

    async def ask(session: aiohttp.ClientSession) -> tuple[int, str, int]:
        async with session.post("/v1/completions", json=body) as got:
            tokens = (await got.json()).get("usage", {}).get("completion_tokens", 0)
            return got.status, got.headers.get("Retry-After", ""), tokens

    async with aiohttp.ClientSession(daemon.url) as session:
        answers = await asyncio.gather(*(ask(session) for _ in range(20)))
    refused = [answer for answer in answers if answer[0] == 429]
    served = [answer for answer in answers if answer[0] == 200]
    assert len(served) >= 4
    assert len(refused) >= 10
    assert len(served) + len(refused) == 20
    assert all(int(retry_after) >= 1 for _, retry_after, _ in refused)
    assert all(tokens == 300 for _, _, tokens in served)
    return len(served)


async def check_viewers_and_the_journal(daemon: LiveDaemon, num_tokens: int) -> None:
    """What is seen and written of a daemon that has served so many tokens; it ends."""
    choose_policy(daemon.socket, "mlfq")
    await text_of(daemon.url, daemon.model()["id"], prompt=[5, 6], max_tokens=20)
    daemon.idle_snapshot()
    for words in (["daemon.cli.main", "ctl", "status", "--json"], ["tui.app", "-1"]):
        done = subprocess.run(
            [sys.executable, "-m", *words, "--socket", str(daemon.socket)],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=True,
        )
        assert daemon.model()["id"] in done.stdout
        if words[-1] == "--json":
            instance = json.loads(done.stdout)["instances"][0]
            wanted = ["name", "role", "device", "running", "waiting", "kv_blocks", "kv_free"]
            assert all(name in instance for name in wanted)
    seen = daemon.idle_snapshot()
    assert seen.instances[0].policy == "mlfq"
    daemon.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(daemon.process.wait, 20)
    history = list(replay(read_records(daemon.folder / "journal" / FILE_NAME)))
    tokens = [a.rows.size for _, actions in history for a in actions if isinstance(a, Deliver)]
    assert sum(tokens) == seen.counters.output_tokens == num_tokens + 20
