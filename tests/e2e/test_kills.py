"""How long clients wait when a worker is killed, one kill at a time; what they get stays whole.

Times are printed, not asserted: they are the machine's affair. Faults of all kinds at once:
tests/chaos.
"""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.live import REAL, LiveDaemon
from tests.e2e.test_lifecycle import pieces, text_of
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S

KILLS_A_TEST = 125
PROMPTS = [[5 + number] * (3 + 97 * number) for number in range(8)]
NUM_TOKENS = 300


def worker_pids(daemon: LiveDaemon) -> list[int]:
    """The processes of the daemon's workers that are there now."""
    tasks = Path(f"/proc/{daemon.process.pid}/task").iterdir()
    pids = [pid for task in tasks for pid in (task / "children").read_text().split()]
    command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    return [int(pid) for pid in pids if b"daemon.engine.worker.main" in command[pid]]


class Clients:
    """Clients that ask without a pause, check every answer, and note their longest waits."""

    def __init__(self, daemon: LiveDaemon, model: str, expected: list[str]) -> None:
        self._daemon = daemon
        self._model = model
        self._expected = expected
        self.going = True
        self.answers = 0
        self.gaps_s: list[tuple[float, float]] = []  # (when it ended, how long)

    async def ask(self, number: int) -> None:
        """One client's life."""
        while self.going:
            text, last_s = "", time.monotonic()
            asked = {"prompt": PROMPTS[number], "max_tokens": NUM_TOKENS}
            async for event in pieces(self._daemon.url, self._model, **asked):
                now = time.monotonic()
                self.gaps_s.append((now, now - last_s))
                last_s = now
                text += event["choices"][0]["text"]
            assert text == self._expected[number]
            self.answers += 1

    def gap_s(self, since_s: float) -> float:
        """The longest wait for a token that ended after then."""
        return max((gap for ended_s, gap in self.gaps_s if ended_s > since_s), default=0.0)


async def until(condition: object, timeout_s: float = HANG_S) -> float:
    """Wait for it; when it was."""
    assert callable(condition)
    deadline_s = time.monotonic() + timeout_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline_s
    return time.monotonic()


async def kill_many(daemon: LiveDaemon, clients: Clients, count: int) -> tuple[list[float], ...]:
    """Kill so many workers, each at a random moment once all are ready; detection and gaps (s)."""
    chance = random.Random(count)
    detected_s, gaps_s = [], []
    for number in range(1, count + 1):
        await asyncio.sleep(chance.choice([0.0, 0.05, 0.4]) * chance.random())
        clients.gaps_s.clear()
        victim = chance.choice(worker_pids(daemon))
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        noticed_s = await until(lambda n=number: daemon.snapshot().counters.worker_deaths == n)
        detected_s.append(noticed_s - killed_s)
        done = clients.answers
        await until(lambda: all(one.state == "ready" for one in daemon.snapshot().instances))
        await until(lambda done=done: clients.answers > done)
        gaps_s.append(clients.gap_s(killed_s))
    return detected_s, gaps_s


def ms(values: list[float], share: float) -> str:
    """A quantile in milliseconds."""
    return f"{1e3 * sorted(values)[min(len(values) - 1, int(share * len(values)))]:.0f} ms"


async def check_kills(folder: Path, instances: int, count: int, kv_blocks: int = 400) -> None:
    """So many kills of a daemon of so many workers."""
    flags = ["--model", str(folder), "--set", f"daemon.restarts={10 * count}"]
    flags += ["--kv-blocks", str(kv_blocks), "--predictor", "none"]
    flags += ["--instance", "cpu"] * instances
    with LiveDaemon(*flags, env=REAL) as daemon:
        model = daemon.model()["id"]
        asked = {"max_tokens": NUM_TOKENS}
        expected = [await text_of(daemon.url, model, prompt=p, **asked) for p in PROMPTS]
        clients = Clients(daemon, model, expected)
        asking = [asyncio.create_task(clients.ask(number)) for number in range(len(PROMPTS))]
        detected_s, gaps_s = await kill_many(daemon, clients, count)
        clients.going = False
        await asyncio.gather(*asking)
        seen = daemon.idle_snapshot()
        assert seen.counters.worker_deaths == count and seen.counters.failed == 0
        assert all(one.kv_held == one.kv_fenced == 0 for one in seen.instances)
    print(
        f"\n{count} kills of {instances} workers: noticed after p50 {ms(detected_s, 0.5)}, "
        f"p99 {ms(detected_s, 0.99)}; longest wait for a token p50 {ms(gaps_s, 0.5)}, "
        f"p99 {ms(gaps_s, 0.99)}; {clients.answers} answers, all as without kills"
    )


@pytest.mark.soak
@pytest.mark.parametrize("instances", [1, 2])
async def test_waits_after_kills(tmp_path: Path, instances: int) -> None:
    await check_kills(tiny_folder(tmp_path / "tiny"), instances, KILLS_A_TEST)


@pytest.mark.soak
async def test_an_instance_is_given_up_and_the_other_serves_on(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    flags = ["--model", str(folder), "--set", "daemon.restarts=0", "--kv-blocks", "400"]
    daemon = LiveDaemon(*flags, *["--instance", "cpu"] * 2, env=REAL)
    try:
        await asyncio.to_thread(daemon.wait_ready)
        await until(lambda: all(one.state == "ready" for one in daemon.snapshot().instances))
        os.kill(worker_pids(daemon)[0], signal.SIGKILL)
        await until(lambda: len(worker_pids(daemon)) == 1)
        await text_of(daemon.url, daemon.model()["id"], prompt=[5, 6], max_tokens=20)
        os.kill(worker_pids(daemon)[0], signal.SIGKILL)
        assert await asyncio.to_thread(daemon.process.wait, 30) == 1, "neither is left"
        assert "its instance is given up, the others serve on" in daemon.text()
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
