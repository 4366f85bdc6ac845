"""Workers that are stopped in the middle of a transfer: no answer waits for them for ever."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.cases import Asker, toy_folder
from tests.chaos.clients import Clients
from tests.chaos.daemons import check_ledgers, quiet, seed_of, toys
from tests.chaos.linked_run import Setting, asked_of, linked_daemon
from tests.e2e.live import LiveDaemon

WORKER = "tests.chaos.linked_worker"
VERY_SLOW = "worker.link_slow:1:100"
FREED_S = 20.0
"""A stopped worker is ended after 2 s, and its answers are computed anew on a busy machine."""


def workers(daemon: LiveDaemon) -> list[int]:
    """The processes of the workers, in the order in which they were started."""
    tasks = Path(f"/proc/{daemon.process.pid}/task").iterdir()
    pids = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    return sorted(p for p in pids if WORKER in Path(f"/proc/{p}/cmdline").read_text())


async def stopped_in_a_transfer(daemon: LiveDaemon, asking: Clients, place: int) -> float:
    """Stop one end while an answer's KV is on its way; how long that answer took from then on."""
    pid = workers(daemon)[place]
    one = asyncio.create_task(asking.live())
    while all(one.ahead for one in (await asyncio.to_thread(daemon.snapshot)).transfers):
        await asyncio.sleep(0.005)
    os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    asking.going = False
    await one
    return time.monotonic() - began_s


@pytest.mark.soak
@pytest.mark.parametrize("place", [0, 1], ids=["source", "target"])
async def test_an_end_that_is_stopped_while_it_computes_nothing(tmp_path: Path, place: int) -> None:
    """The only answer waits for its KV: no step is under way anywhere, and none is late."""
    cases = [one for one in Asker(seed_of(21), most_tokens=200).cases(12) if one.kind == "greedy"]
    subject = toys(toy_folder(tmp_path / "toy"), cases)
    asked = await asked_of(subject, tmp_path / "llmd.toml")
    setting = Setting(subject._replace(worker=WORKER), {}, asked, clients=1)
    with linked_daemon(setting, tmp_path / "llmd.toml", VERY_SLOW) as daemon:
        await quiet(daemon)
        asking = Clients(daemon.url, asked, 1)
        took_s = await asyncio.wait_for(stopped_in_a_transfer(daemon, asking, place), 60.0)
        print(f"\nthe answer was whole {took_s:.1f} s after the stop")
        assert not asking.tally.wrong, asking.tally.wrong
        seen = await quiet(daemon)
        assert seen.counters.worker_deaths == 1 and took_s < FREED_S
        assert not seen.transfers and not any(one.remote_kvs for one in seen.instances)
        check_ledgers(seen)
