"""No process outlives its daemon, however that ends; the next one finds its folders in order."""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.cases import Asker, toy_folder
from tests.chaos.clients import Clients, undisturbed
from tests.chaos.daemons import (
    KV_BLOCKS,
    alone_flags,
    check_ledgers,
    flags_of,
    marked,
    quiet,
    seed_of,
    toys,
)
from tests.chaos.processes import await_end, members, words_of
from tests.e2e.live import LiveDaemon
from tests.hangs import HANG_S

STOPPED = "killed with a child stopped"
ENDS = ("killed", STOPPED, "ended", "ended twice")


async def one_life(
    daemon: LiveDaemon, mark: str, how: str, chance: random.Random, clients: Clients | None
) -> None:
    """Let it start, and serve a while maybe; then end it in this way, at a random moment."""
    asking = []
    if clients is not None:
        await asyncio.to_thread(daemon.wait_ready)
        asking = [asyncio.create_task(clients.live()) for _ in range(6)]
    await asyncio.sleep(chance.uniform(0.0, 1.5))
    if how == STOPPED:
        stop_a_child(mark, chance)
    if how.startswith("killed"):
        daemon.process.kill()
    else:
        daemon.process.send_signal(signal.SIGTERM)
    if how == "ended twice":
        await asyncio.sleep(chance.uniform(0.0, 0.3))
        daemon.process.send_signal(signal.SIGTERM)
    status = await asyncio.to_thread(daemon.process.wait, 40.0)
    assert status in (0, -signal.SIGKILL, -signal.SIGTERM), daemon.text()
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    left = await asyncio.to_thread(await_end, mark, HANG_S)
    assert left == {}, f"{how}: a process outlives its daemon\n{daemon.text()}"


def stop_a_child(mark: str, chance: random.Random) -> None:
    """The API process or a worker, of a daemon that is ready: before that, one may not have asked
    the kernel yet to end with its parent.
    """
    found = members(mark)
    spare = [pid for pid in found if "--spare" in words_of(pid)]
    wanted = ("daemon.api", "tests.chaos.worker")
    pids = [pid for pid, module in found.items() if module in wanted and pid not in spare]
    os.kill(chance.choice(sorted(pids)), signal.SIGSTOP)


async def check_lives(tmp_path: Path, lives: int, seed: int) -> None:
    """So many lives of daemons on the same folders; the last one is whole, and ends by itself."""
    print(f"\nseed {seed}")
    chance = random.Random(seed)
    state = tmp_path / "state"
    state.mkdir()
    cases = Asker(seed, most_tokens=40).cases(6)
    subject = toys(toy_folder(tmp_path / "toy"), cases)
    mark, env = marked(subject)
    flags = flags_of(subject, tmp_path / "llmd.toml", KV_BLOCKS)
    first = alone_flags(subject, tmp_path / "llmd.toml")
    with LiveDaemon(*first, env=env, folder=state) as daemon:
        expected = await undisturbed(daemon.url, cases, 2)
    ended: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(lives):
        how = ENDS[number % len(ENDS)]
        daemon = LiveDaemon(*flags, env=env, folder=state)
        clients = None
        if how == STOPPED or chance.random() < 0.6:
            clients = Clients(daemon.url, list(zip(cases, expected, strict=True)), seed)
            clients.outages.begin()
        try:
            await one_life(daemon, mark, how, chance, clients)
        finally:
            daemon.process.kill()
        ended[f"{how}{'' if clients else ' while it started'}"] += 1
        wrong += clients.tally.wrong if clients else []
    assert wrong == []
    with LiveDaemon(*flags, env=env, folder=state) as daemon:
        await quiet(daemon)
        assert await undisturbed(daemon.url, cases, 4) == expected
        check_ledgers(await quiet(daemon))
    assert await_end(mark, HANG_S) == {}
    print(f"{lives} lives, all followed by no process: {dict(ended)}")


async def test_no_process_outlives_its_daemon(tmp_path: Path) -> None:
    await check_lives(tmp_path, 2, seed_of(3))


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_no_process_outlives_any_of_many_daemons(tmp_path: Path) -> None:
    await check_lives(tmp_path, 60, seed_of(4))
