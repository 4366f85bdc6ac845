"""A daemon whose instance is several ranks: the texts of one worker, whatever befalls a rank."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from daemon.wire.faults import TEST_MODE, VARIABLE
from tests.e2e.live import REAL, LiveDaemon
from tests.e2e.test_lifecycle import pieces, text_of
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S
from tests.nursery.worker import BY_GLOO
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
STATES = ("decode", "swap", "loading", "prefill", "idle")
"""What the instance is about when one of its ranks gets a signal."""
INSTANCES = ("cpu:tp2", "cpu:pp2")
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
    return sorted(
        int(pid) for pid in pids if any(module in command_of(pid) for module in RANK_PROCESSES)
    )


async def two_ranks(daemon: LiveDaemon) -> list[int]:
    """The ranks, once there are two: /proc leaves out children while others begin or end."""
    async with asyncio.timeout(HANG_S):
        while len(found := rank_pids(daemon)) != 2:
            await asyncio.sleep(0.01)
    return found


def command_of(pid: str) -> bytes:
    """The command of a process; empty where it is gone by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.parametrize("instance", INSTANCES)
async def test_ranks_give_the_texts_of_one_worker(
    instance: str, folder: Path, expected: list[str]
) -> None:
    with LiveDaemon("--model", str(folder), "--instance", instance, *SMALL) as daemon:
        (shown,) = daemon.snapshot().instances
        assert shown.device == instance
        assert sorted(rank.pid for rank in shown.ranks) == rank_pids(daemon)
        assert await texts(daemon) == expected
        assert await texts(daemon) == expected, "from the prefix cache"
        assert daemon.snapshot().counters.swaps_out
        (shown,) = daemon.snapshot().instances
        if instance == "cpu:pp2":
            assert 0 < min(shown.stages.computed_s) < shown.stages.steps_s
        else:
            assert shown.stages is UNSET and shown.bubble_of(0) is None


@pytest.mark.parametrize(
    ("instance", "seed"),
    [
        pytest.param(instance, seed, marks=[pytest.mark.soak] * bool(seed))
        for seed in range(5)
        for instance in INSTANCES
    ],
)
async def test_a_lost_rank_takes_no_answer_with_it(
    instance: str, seed: int, folder: Path, expected: list[str]
) -> None:
    """In a soak a hundred times in all."""
    await lose(instance, folder, expected, signal.SIGKILL, tries(2, 20), {}, seed)


@pytest.mark.soak
async def test_ranks_that_meet_as_those_of_gpus_lose_no_answer(
    folder: Path, expected: list[str]
) -> None:
    """By gloo, on a CPU: with a rank that is killed, and with one that misses an operation."""
    by_gloo = {BY_GLOO: "1"}
    await lose("cpu:tp2", folder, expected, signal.SIGKILL, 3, by_gloo)
    env = {**by_gloo, TEST_MODE: "1", VARIABLE: "worker.absent:0.003:1"}
    flags = "--instance", "cpu:tp2", "--set", "daemon.restarts=50"
    with LiveDaemon("--model", str(folder), *flags, *SMALL, env=env) as daemon:
        while "no answer to a step within" not in daemon.text():
            assert await asyncio.wait_for(texts(daemon), HANG_S) == expected


@pytest.mark.soak
@pytest.mark.parametrize("instance", INSTANCES)
async def test_a_stopped_rank_takes_no_answer_with_it(
    instance: str, folder: Path, expected: list[str]
) -> None:
    await lose(instance, folder, expected, signal.SIGSTOP, 20, REAL)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("here", "there"), [("tp2", "tp2"), ("pp2", "pp2"), ("tp2", "pp2"), ("tp3", "tp2")]
)
async def test_a_rank_lost_between_two_instances_takes_no_answer_with_it(
    here: str, there: str, folder: Path, expected: list[str]
) -> None:
    """Prompts at one, answers at the other: a rank goes while blocks are on their way."""
    flags = ["--instance", f"cpu:{here}:prefill", f"cpu:{there}:decode"]
    chance = random.Random(here + there)
    with LiveDaemon("--model", str(folder), *flags, "--set", "daemon.restarts=90") as daemon:
        daemon.wait_all_ready()  # who is lost at its first start is given up
        for _ in range(10):
            asking = asyncio.create_task(texts(daemon))
            await asyncio.sleep(0.2 * chance.random())
            os.kill(chance.choice(rank_pids(daemon)), signal.SIGKILL)
            assert await asyncio.wait_for(asking, HANG_S) == expected
            await asyncio.to_thread(daemon.wait_all_ready)
        assert await texts(daemon) == expected
        seen = daemon.idle_snapshot()
        assert seen.counters.worker_deaths >= 10 and seen.counters.handoffs
        assert all(one.kv_held == one.kv_fenced == 0 for one in seen.instances)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.soak)])
async def test_a_rank_that_misses_a_sum_is_found_as_a_hanging_step_is(
    rank: int, folder: Path, expected: list[str]
) -> None:
    env = {TEST_MODE: "1", VARIABLE: f"worker.absent:0.003:{rank}"}
    flags = "--instance", "cpu:tp2", "--set", "daemon.restarts=50"
    with LiveDaemon("--model", str(folder), *flags, *SMALL, env=env) as daemon:
        while "no answer to a step within" not in daemon.text():
            assert await asyncio.wait_for(texts(daemon), HANG_S) == expected
        assert "is late by more than" not in daemon.text(), "nobody waited for the ranks' own end"


class Gaps:
    """The longest wait for a piece of an answer, of all clients."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def text(self, url: str, model: str, **asked: object) -> str:
        """One client's answer."""
        text, last_s = "", time.monotonic()
        async for event in pieces(url, model, **asked):
            assert "error" not in event
            now = time.monotonic()
            self.longest_s, last_s = max(self.longest_s, now - last_s), now
            text += event["choices"][0]["text"]
        return text


async def lose(
    instance: str,
    folder: Path,
    expected: list[str],
    number: signal.Signals,
    count: int,
    env: dict[str, str],
    seed: int = 0,
) -> None:
    """Send a rank a signal, again and again, in each state in turn; all answers are whole."""
    flags = "--instance", instance, "--set", f"daemon.restarts={3 * count}"
    chance, gaps = random.Random(100 * count + seed), Gaps()
    with LiveDaemon("--model", str(folder), *flags, *SMALL, env=env) as daemon:
        model = daemon.model()["id"]

        def ask() -> list[asyncio.Task[str]]:
            texts = (gaps.text(daemon.url, model, **asked) for asked in ASKED)
            return [asyncio.create_task(text) for text in texts]

        for turn in range(count):
            before, state = rank_pids(daemon), STATES[turn % len(STATES)]
            asking = [] if state == "idle" else ask()
            gone = await reach(daemon, state, chance, asking, ask)
            os.kill(chance.choice(rank_pids(daemon)), number)
            asking = asking or ask()
            rounds = len(asking) // len(ASKED)
            assert await asyncio.wait_for(asyncio.gather(*asking), HANG_S) == rounds * expected
            await asyncio.to_thread(daemon.wait_all_ready)
            now = await two_ranks(daemon)
            assert not set(now) & {*before, *gone}, "no rank outlives its instance"
        seen = daemon.idle_snapshot()
        assert seen.counters.worker_deaths >= count and not seen.counters.failed
        assert all(one.kv_held == one.kv_fenced == 0 for one in seen.instances)
    if SOAK:
        print(f"{count} of {number.name}: the longest wait for a token {gaps.longest_s:.1f} s")


async def reach(
    daemon: LiveDaemon,
    state: str,
    chance: random.Random,
    asking: list[asyncio.Task[str]],
    ask: Callable[[], list[asyncio.Task[str]]],
) -> list[int]:
    """Wait until the instance is about this; the ranks that were killed for it.

    On a quick machine all answers may have ended before that is seen: then all are asked for again.
    """

    async def until(holds: Callable[[], bool]) -> None:
        while not holds():
            ended = [text.result() for text in asking if text.done()]  # raises where one failed
            if len(ended) == len(asking):
                asking.extend(ask())
            await asyncio.sleep(0.001)

    before, swaps = rank_pids(daemon), daemon.snapshot().counters.swaps_out
    async with asyncio.timeout(HANG_S):
        if state == "loading":
            os.kill(chance.choice(before), signal.SIGKILL)
            while len(rank_pids(daemon)) < 2 or set(rank_pids(daemon)) & set(before):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.3 * chance.random())
            return before
        if state == "swap":
            await until(lambda: daemon.snapshot().counters.swaps_out > swaps)
        if state == "prefill":
            await until(lambda: daemon.snapshot().running > 0)
        await asyncio.sleep(0.3 * chance.random() if state == "decode" else 0.0)
    return []


class Told:
    """A daemon that tells of what clients ask in its second round alone."""

    def __init__(self) -> None:
        self.process = SimpleNamespace(pid=os.getpid())
        self.rounds = 0

    def ask(self) -> list[asyncio.Task[str]]:
        self.rounds += 1
        return [asyncio.create_task(asyncio.sleep(0.0, "text"))]

    def snapshot(self) -> Any:
        seen = int(self.rounds > 1)
        return SimpleNamespace(counters=SimpleNamespace(swaps_out=seen), running=seen)


@pytest.mark.parametrize("state", ["swap", "prefill"])
async def test_what_passed_unseen_is_asked_for_again(state: str) -> None:
    told: Any = Told()
    asking = told.ask()
    async with asyncio.timeout(HANG_S):
        await reach(told, state, random.Random(1), asking, told.ask)
        assert await asyncio.gather(*asking) == ["text"] * 2
