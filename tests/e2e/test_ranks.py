"""A daemon whose instance is several ranks: the texts of one worker, whatever befalls a rank."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.live import REAL, LiveDaemon
from tests.e2e.test_lifecycle import text_of
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S
from tests.soak import SOAK, tries

NUM_TOKENS = 120
PROMPTS = [[5 + number] * (3 + 40 * number) for number in range(4)]
ASKED = [
    {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": temperature, "seed": 7}
    for prompt in PROMPTS
    for temperature in (0.0, 0.9)
]
# Too few blocks for all at once: some are swapped out and come back.
SMALL = ("--set", "memory.kv_blocks=34", "--set", "scheduler.max_running=6")
RANK_PROCESSES = (b"daemon.engine.worker.main", b"tests.nursery.worker")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """The texts of one worker."""
    with LiveDaemon("--model", str(folder), "--instance", "cpu") as daemon:
        return asyncio.run(texts(daemon))


async def texts(daemon: LiveDaemon) -> list[str]:
    model = daemon.model()["id"]
    return await asyncio.gather(*(text_of(daemon.url, model, **asked) for asked in ASKED))


def rank_pids(daemon: LiveDaemon) -> list[int]:
    """The processes of the instance's ranks, the first of them first."""
    tasks = Path(f"/proc/{daemon.process.pid}/task").iterdir()
    pids = [pid for task in tasks for pid in (task / "children").read_text().split()]
    command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    return sorted(
        int(pid) for pid in pids if any(module in command[pid] for module in RANK_PROCESSES)
    )


async def test_ranks_give_the_texts_of_one_worker(folder: Path, expected: list[str]) -> None:
    with LiveDaemon("--model", str(folder), "--instance", "cpu:tp2", *SMALL) as daemon:
        assert daemon.snapshot().instances[0].device == "cpu:tp2"
        assert await texts(daemon) == expected
        assert await texts(daemon) == expected, "from the prefix cache"
        assert daemon.snapshot().counters.swaps_out


@pytest.mark.parametrize("signals", [pytest.param(signal.SIGKILL, id="killed")])
async def test_a_lost_rank_takes_no_answer_with_it(
    signals: signal.Signals, folder: Path, expected: list[str]
) -> None:
    await lose(folder, expected, signals, tries(2, 50), {})


@pytest.mark.soak
async def test_a_stopped_rank_takes_no_answer_with_it(folder: Path, expected: list[str]) -> None:
    await lose(folder, expected, signal.SIGSTOP, 20, REAL)


async def lose(
    folder: Path, expected: list[str], number: signal.Signals, count: int, env: dict[str, str]
) -> None:
    """Send a rank a signal, again and again, while answers come; all of them are whole."""
    flags = "--instance", "cpu:tp2", "--set", f"daemon.restarts={count + 5}"
    chance = random.Random(count)
    longest_s = 0.0
    with LiveDaemon("--model", str(folder), *flags, *SMALL, env=env) as daemon:
        for turn in range(count):
            asking = asyncio.create_task(texts(daemon))
            await asyncio.sleep(chance.choice((0.0, 0.05, 0.4)) * chance.random())
            before = rank_pids(daemon)
            began_s = time.monotonic()
            os.kill(before[turn % len(before)], number)
            assert await asyncio.wait_for(asking, HANG_S) == expected
            longest_s = max(longest_s, time.monotonic() - began_s)
            await asyncio.to_thread(daemon.wait_all_ready)
            now = rank_pids(daemon)
            assert len(now) == 2 and not set(now) & set(before), "no rank outlives its instance"
    if SOAK:
        print(
            f"{count} of {number.name}: the longest until all answers were there {longest_s:.1f} s"
        )
