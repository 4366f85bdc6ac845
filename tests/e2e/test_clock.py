"""The wall clock jumps by ten days, to and fro, while answers run: nobody notices."""

import asyncio
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.live import TOY, LiveDaemon
from tests.e2e.test_lifecycle import text_of
from tests.e2e.tiny import tiny_folder

DAYS_S = 10 * 86_400
SOURCE = Path(__file__).with_name("jumping_clock.c")


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """The file that says by how much the clock is off."""
    path = tmp_path / "offset"
    path.write_bytes(struct.pack("q", 0))
    return path


@pytest.fixture
def env(tmp_path: Path, clock: Path) -> dict[str, str]:
    """What a program whose clock jumps is started with."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the jumping clock with")
    library = tmp_path / "clock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True
    )
    return {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(clock)}


def jump(clock: Path, seconds: int) -> None:
    with clock.open("r+b") as file:
        file.write(struct.pack("q", seconds))


def test_the_injection_works(env: dict[str, str], clock: Path) -> None:
    program = "import time; print(time.time(), time.monotonic())"

    def told() -> tuple[float, float]:
        command = [sys.executable, "-c", program]
        words = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        wall_s, monotonic_s = map(float, words.stdout.split())
        return wall_s, monotonic_s

    before = told()
    jump(clock, DAYS_S)
    after = told()
    assert DAYS_S <= after[0] - before[0] < DAYS_S + 60
    assert 0 <= after[1] - before[1] < 60


async def test_answers_connections_and_rest_outlive_jumps(
    env: dict[str, str], clock: Path, tmp_path: Path
) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    flags = ("--model", str(folder), "--policy", "mlfq", "--set", "scheduler.max_running=2")
    with LiveDaemon(*flags, env={**env, **TOY}) as daemon:
        model = daemon.model()["id"]
        asked = {"prompt": [5, 6, 7], "max_tokens": 400}
        async with aiohttp.ClientSession(daemon.url) as session:
            async with session.get("/health") as response:  # a connection that then rests
                assert response.status == 200
            expected = await text_of(daemon.url, model, **asked)
            running = [asyncio.create_task(text_of(daemon.url, model, **asked)) for _ in range(6)]
            days = [1, -1]
            while not all(task.done() for task in running) or days:
                jump(clock, (days.pop(0) if days else 0) * DAYS_S)
                await asyncio.sleep(0.2)
            assert {await task for task in running} == {expected}
            async with session.get("/health") as response:
                assert (await response.json())["status"] == "alive"
        seen = daemon.idle_snapshot()
        assert seen.counters.aborted == seen.counters.failed == seen.counters.worker_deaths == 0
        assert 0 <= seen.uptime_s < 600
        assert "ERROR" not in daemon.text()
