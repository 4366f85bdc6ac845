"""A worker on a node under its supervisor: lost with its node, its proxy, or by its own fault.

The node is the proxy's process, and the worker computes a toy.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon.supervisor import worker
from daemon.supervisor.child import start_child
from daemon.supervisor.proxy import ClusterOrder
from daemon.supervisor.spare import StartedWorker
from tests.engine.process import cpu_load
from tests.hangs import HANG_S
from tests.supervisor.model_folder import write_llama
from tests.supervisor.test_worker import Told
from tests.supervisor.waiting import until


class NodeTold(Told):
    """What the supervisor of a worker on a node told."""

    def __init__(self, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(cpu_load(folder), cluster=ClusterOrder("127.0.0.1:1", 1))
        monkeypatch.setattr(worker, "start_proxy", self._start)

    async def _start(self, order: ClusterOrder, device: str) -> StartedWorker:
        assert (order.cpus, device) == (1, "cpu")
        return StartedWorker(*await start_child("tests.cluster.near_proxy", []), None)

    @property
    def node(self) -> str:
        return self.worker.processes[0]

    def engine(self) -> int:
        """The process id of the worker on the node."""
        folder = Path(f"/proc/{self.worker.pid}/task")
        (pid,) = (word for task in folder.iterdir() for word in _children(task))
        return int(pid)


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> AsyncIterator[tuple[NodeTold, "asyncio.Task[None]"]]:
    told = NodeTold(str(write_llama(folder)), monkeypatch)
    assert told.node == "?"
    task = asyncio.create_task(told.worker.run())
    try:
        yield told, task
    finally:
        await told.worker.close()
        await asyncio.wait_for(task, HANG_S)


@pytest.mark.parametrize(
    ("number", "of_node", "blamed"),
    [
        (signal.SIGKILL, True, False),
        (signal.SIGABRT, True, False),
        (signal.SIGKILL, False, False),
        (signal.SIGABRT, False, True),
    ],
    ids=["node", "proxy-aborts", "killed-there", "aborts-there"],
)
async def test_only_its_own_fault_is_held_against_a_worker(
    number: signal.Signals,
    of_node: bool,
    blamed: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    async with running(monkeypatch, tmp_path) as (told, _task):
        await until(lambda: len(told.readies) == 1)
        assert told.node == "near"
        token, engine = await told.first_token(), told.engine()
        os.kill(told.worker.pid if of_node else engine, number)
        await until(lambda: bool(told.blamed))
        await until(lambda: len(told.readies) == 2)
        assert told.blamed == [blamed] and told.node == "near"
        assert told.engine() != engine
        assert await told.first_token() == token
        assert await told.worker.close() == 0


async def test_a_node_that_is_lost_while_the_worker_loads_is_not_its_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first worker on this node, which has served nothing yet."""
    async with running(monkeypatch, tmp_path) as (told, _task):
        await until(lambda: told.node == "near" and not told.readies)
        os.kill(told.worker.pid, signal.SIGKILL)
        await until(lambda: told.blamed == [False])
        await until(lambda: len(told.readies) == 1)
        assert not told.why


async def test_a_model_that_cannot_load_there_is_hopeless(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running(monkeypatch, tmp_path) as (told, task):
        (tmp_path / "config.json").unlink()
        await asyncio.wait_for(asyncio.shield(task), HANG_S)
        assert "config.json" in told.why
        assert told.node == "?"
