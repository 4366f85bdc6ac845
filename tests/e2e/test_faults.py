"""A whole daemon in which things break on purpose: its answers are those of one that is well."""

import asyncio
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.scheduler.suspects import DEADLY
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE, VARIABLE, Fault
from tests.e2e.live import LiveDaemon, free_port
from tests.e2e.test_lifecycle import text_of
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S

POISON = 99
ASKED = [{"prompt": [9, 8, 7, number] * 10, "max_tokens": 700} for number in (4, 5, 6)]


async def answered(daemon: LiveDaemon, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": daemon.model()["id"], "temperature": 0, "ignore_eos": True, **fields}
    async with (
        aiohttp.ClientSession(daemon.url) as session,
        session.post("/v1/completions", json=body) as got,
    ):
        return got.status, await got.json()


def seed_striking_at(visit: int) -> int:
    """A seed with which a probability of a half strikes first at this visit."""
    for seed in count():
        fault = Fault(0.5, seed)
        if [fault.strikes() for _ in range(visit + 1)] == [False] * visit + [True]:
            return seed
    raise AssertionError


async def all_running(daemon: LiveDaemon, asked: list[asyncio.Task[str]]) -> None:
    """Wait until all of them run at once. Raises AssertionError where one has ended before."""
    while daemon.snapshot().running < len(asked):
        assert not any(one.done() for one in asked), "an answer ended before all had begun"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("lookup", [pytest.param(False, marks=pytest.mark.soak), True])
async def test_answers_are_whole_where_requests_kill_processes_and_the_disk_is_full(
    tmp_path: Path, lookup: bool
) -> None:
    """Steps are slow, so that answers that repeat themselves and are drafted go on long enough."""
    crash = seed_striking_at(2 * len(ASKED) + 1)
    sites = f"worker.poison:1:{POISON},journal.full:0.5:2,api.crash:0.5:{crash},worker.slow:1:3"
    flags = ["--model", str(tiny_folder(tmp_path / "tiny"))]
    flags += ["--set", f"scheduler.prompt_lookup={str(lookup).lower()}"]
    with LiveDaemon(*flags, env={TEST_MODE: "1", VARIABLE: sites}) as daemon:
        model = daemon.model()["id"]
        expected = [await text_of(daemon.url, model, **asked) for asked in ASKED]
        neighbours = [asyncio.create_task(text_of(daemon.url, model, **a)) for a in ASKED]
        await all_running(daemon, neighbours)
        status, answer = await answered(daemon, prompt=[5, POISON, 6], max_tokens=5)
        assert (status, answer["error"]["message"]) == (500, DEADLY)
        assert await asyncio.gather(*neighbours) == expected
        seen = daemon.idle_snapshot()
        assert seen.counters.worker_deaths == 2
        assert (seen.counters.failed, seen.counters.finished) == (1, 2 * len(ASKED))
        assert seen.instances[0].kv_held == seen.instances[0].kv_fenced == 0
        assert (seen.counters.accepted_tokens > 0) is lookup
        with pytest.raises(aiohttp.ClientError):
            await text_of(daemon.url, model, **ASKED[0])
        daemon.wait_ready()
        assert await text_of(daemon.url, model, **ASKED[0]) == expected[0]


@pytest.mark.parametrize(
    ("variable", "value"), [(VARIABLE, "worker.hang:0:1"), (WORKER, "tests.chaos.worker")]
)
def test_nothing_breaks_on_purpose_outside_test_mode(
    tmp_path: Path, variable: str, value: str
) -> None:
    command = [sys.executable, "-m", "daemon.cli.main", "serve", "--port", str(free_port())]
    done = subprocess.run(
        [*command, "--socket", str(tmp_path / "x.sock")],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={variable: value},
    )
    assert done.returncode == 1
    assert f"{variable} is set, but LLMD_TEST_MODE=1 is not" in done.stderr
