"""Workers on two nodes, joined by the runtime over their hosts: lost ones are joined anew.

The nodes are the proxies' processes; the workers compute a toy, and their links are real.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from daemon.supervisor import worker
from daemon.supervisor.child import start_child
from daemon.supervisor.proxy import ClusterOrder
from daemon.supervisor.spare import StartedWorker
from tests.hangs import HANG_S
from tests.runtime.test_linked_workers import ALL, Workers
from tests.supervisor.model_folder import write_llama
from tests.supervisor.waiting import until


async def near(_order: ClusterOrder, _device: str) -> StartedWorker:
    flags = ["--worker", "tests.chaos.linked_worker"]
    return StartedWorker(*await start_child("tests.cluster.near_proxy", flags), None)


async def test_blocks_go_between_nodes_and_a_lost_one_is_joined_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "start_proxy", near)
    two = Workers(str(write_llama(tmp_path)), cluster=ClusterOrder("127.0.0.1:1", 1))
    running = [asyncio.create_task(one.run()) for one in two.processes]
    await until(lambda: two.ups() == ALL)
    for transfer, (source, target) in enumerate([(0, 1), (1, 0)]):
        two.send(transfer, source, target)
        await until(lambda number=transfer: two.ended(number) == {0: 1, 1: 1})
    os.kill(two.processes[1].pid, signal.SIGSTOP)  # as a node that is cut off: it says nothing
    two.send(7, 0, 1)
    await asyncio.sleep(0.2)
    assert 1 not in two.ended(7)
    os.kill(two.processes[1].pid, signal.SIGKILL)
    await until(lambda: 0 in two.ended(7) and not two.ups() & {(0, 1, True), (0, 1, False)})
    two.heard.clear()
    await until(lambda: two.ups() == ALL)
    two.send(8, 0, 1)
    await until(lambda: two.ended(8) == {0: 1, 1: 1})
    two.links.close()
    assert [await one.close() for one in two.processes] == [0, 0]
    await asyncio.wait_for(asyncio.gather(*running), HANG_S)
