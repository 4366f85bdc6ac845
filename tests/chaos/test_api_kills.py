"""The API process is killed in the middle of transfers: who moves ends, and nothing else does."""

import asyncio
import os
import signal
import time
from pathlib import Path

from daemon.core.core import Core
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME
from daemon.lab.simulator.journal import replay
from daemon.supervisor.spare import WORKER
from tests.chaos.cases import SHORT_KINDS, Asker, toy_folder
from tests.chaos.clients import Clients
from tests.chaos.daemons import seed_of, toys
from tests.chaos.linked_run import Setting, asked_of, disturbed, linked_daemon
from tests.chaos.processes import gone
from tests.chaos.strikes import FOLDER, Strikes
from tests.e2e.live import LiveDaemon

API = "daemon.api"
KILLS = 2
VERY_SLOW = "worker.link_slow:1:60"
"""What is seen on its way is still on it when the API process dies."""


async def kill_api(daemon: LiveDaemon, asking: Clients) -> float:
    """Kill the API process while blocks are on their way, once some have landed since it began;
    when that was. It is back then.
    """
    landed = (await asyncio.to_thread(daemon.snapshot)).counters.handoffs
    while True:
        seen = await asyncio.to_thread(daemon.snapshot)
        if seen.transfers and seen.counters.handoffs > landed:
            break
        await asyncio.sleep(0.005)
    pid, struck_s = daemon.children()[API], time.monotonic()
    asking.outages.begin()
    os.kill(pid, signal.SIGKILL)
    while not gone(pid):
        await asyncio.sleep(0.005)
    asking.outages.end()
    await asyncio.to_thread(daemon.wait_ready)
    return struck_s


def on_their_way(daemon: LiveDaemon, times_s: list[float]) -> list[int]:
    """How many transfers were open at each of these times."""
    cores: list[Core] = []
    counts: list[int] = []
    num_open = 0
    records = read_records(daemon.folder / "journal" / FILE_NAME)
    for event, _actions in replay(records, cores.append):
        while len(counts) < len(times_s) and event.now > times_s[len(counts)]:
            counts.append(num_open)
        num_open = len(cores[-1].migrator.transfers.open)
    return counts


async def test_the_api_killed_in_the_middle_of_transfers_leaves_nothing_behind(
    tmp_path: Path, quick: dict[str, str]
) -> None:
    """Its streams were right as far as they came; workers live on, and serve who asks next."""
    seed = seed_of(31)
    cases = [one for one in Asker(seed, most_tokens=60).cases(18) if one.kind in SHORT_KINDS]
    subject = toys(toy_folder(tmp_path / "toy"), cases)._replace(worker=quick[WORKER])
    env = {**quick, FOLDER: str(tmp_path)}
    setting = Setting(subject, env, await asked_of(subject, tmp_path / "alone.toml", env=env))
    Strikes(tmp_path)  # where workers look for orders: there are none
    with linked_daemon(setting, tmp_path / "llmd.toml", VERY_SLOW) as daemon:

        async def disturb(asking: Clients) -> list[float]:
            return [await kill_api(daemon, asking) for _ in range(KILLS)]

        times_s, seen = await disturbed(daemon, setting, seed, disturb)
        counts = on_their_way(daemon, times_s)
    print(f"transfers on their way at each kill: {counts}; {seen.counters.aborted} ended")
    assert all(counts)
    assert seen.counters.worker_deaths == 0 and seen.counters.aborted >= KILLS
