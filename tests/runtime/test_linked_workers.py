"""Real workers under their supervisors, joined by the runtime: killed ones are joined anew."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from daemon.core.values.actions import Send
from daemon.core.values.events import LinkChanged, TransferEnded
from daemon.protocol.worker import NewLink, Ready
from daemon.runtime.links import LinkBroker
from daemon.supervisor.proxy import ClusterOrder
from daemon.supervisor.spare import Spare
from daemon.supervisor.worker import WorkerHooks, WorkerProcess
from daemon.wire.columns import int32
from tests.engine.process import cpu_load
from tests.hangs import HANG_S
from tests.runtime.ends import one_worker_each
from tests.supervisor.model_folder import write_llama
from tests.supervisor.waiting import until
from tests.wire.descriptors import open_descriptors


class Workers:
    """Two instances' workers, and what their links told the Core."""

    def __init__(
        self, folder: str, spare: Spare | None = None, cluster: ClusterOrder | None = None
    ) -> None:
        self.heard: list[LinkChanged | TransferEnded] = []
        self.links = LinkBroker(
            self._hand,
            self.heard.append,
            self._hangs,
            self._is_stopped,
            lambda instance, rank, link: self.processes[instance].end_link(link, rank),
            one_worker_each(2),
            lambda instance: self.processes[instance].door,
        )
        hooks = WorkerHooks(
            loading=lambda *_: None,
            ready=self._ready,
            reply=lambda *_: None,
            lost=lambda instance, _blamed: self.links.lost(instance),
            hopeless=lambda *_: None,
            link_state=self.links.state,
            transfer_over=self.links.over,
        )
        load = cpu_load(folder, num_threads=1)
        self.processes = [
            WorkerProcess(index, f"w{index}", load, hooks, spare=spare, cluster=cluster)
            for index in range(2)
        ]

    def _hangs(self, instance: int, why: str) -> None:
        self.processes[instance].give_up(why)

    def _is_stopped(self, instance: int) -> bool:
        return self.processes[instance].is_stopped

    def send(self, transfer: int, source: int, target: int) -> None:
        """What an action of the Core becomes."""
        order = self.links.order(Send(transfer, source, target, int32([3]), int32([4]), 16))
        self.processes[source].start_transfer(order)

    def ups(self) -> set[tuple[int, int, bool]]:
        """Ends that are up."""
        up: set[tuple[int, int, bool]] = set()
        for event in self.heard:
            if isinstance(event, LinkChanged):
                end = event.instance, event.peer, event.sends
                assert event.is_up != (end in up), "an end changes each time"
                (up.add if event.is_up else up.discard)(end)
        return up

    def ended(self, transfer: int) -> dict[int, int]:
        """How many blocks each end of a transfer says are right."""
        found: dict[int, int] = {}
        for event in self.heard:
            if isinstance(event, TransferEnded) and event.transfer == transfer:
                assert event.instance not in found, "once"
                found[event.instance] = event.num_right
        return found

    def _ready(self, instance: int, _ready: Ready) -> None:
        self.links.ready(instance)

    def _hand(self, instance: int, rank: int, message: NewLink, fd: int | None) -> None:
        self.processes[instance].new_link(message, fd, rank)


ALL = {(0, 1, True), (1, 0, False), (1, 0, True), (0, 1, False)}


@pytest.mark.soak
async def test_workers_are_joined_and_joined_again(tmp_path: Path) -> None:
    before = open_descriptors()
    spare = Spare("cpu")
    two = Workers(str(write_llama(tmp_path)), spare)
    running = [asyncio.create_task(one.run()) for one in two.processes]
    await until(lambda: two.ups() == ALL)
    for transfer, (source, target) in enumerate([(0, 1), (1, 0)]):
        two.send(transfer, source, target)
        await until(lambda number=transfer: two.ended(number) == {0: 1, 1: 1})
    await spare.prepare()
    await until(lambda: spare.ready)
    taken = spare.pid

    two.processes[1].cancel_transfer(99)  # which is not known there
    stopped = two.processes[1].pid
    os.kill(stopped, signal.SIGSTOP)  # it takes nothing in
    two.send(7, 0, 1)
    await asyncio.sleep(0.2)
    assert two.ended(7) == {}
    os.kill(stopped, signal.SIGKILL)
    await until(lambda: two.ended(7) == {0: 0} and not two.ups() & {(0, 1, True), (0, 1, False)})
    two.heard[:] = [one for one in two.heard if isinstance(one, TransferEnded)]
    await until(lambda: two.ups() == ALL)
    assert two.processes[1].pid == taken, "a spare can be joined too"
    two.send(8, 0, 1)
    await until(lambda: two.ended(8) == {0: 1, 1: 1})
    two.links.close()
    assert [await one.close() for one in two.processes] == [0, 0]
    await asyncio.wait_for(asyncio.gather(*running), HANG_S)
    await spare.close()
    await asyncio.sleep(0.01)
    assert open_descriptors() == before


@pytest.mark.soak
@pytest.mark.parametrize("stopped", [0, 1])
async def test_a_worker_that_is_stopped_in_a_transfer_is_ended(
    tmp_path: Path, stopped: int
) -> None:
    """Nothing else is asked of it, so that no step is late."""
    spare = Spare("cpu")
    two = Workers(str(write_llama(tmp_path)), spare)
    running = [asyncio.create_task(one.run()) for one in two.processes]
    await until(lambda: two.ups() == ALL)
    pid = two.processes[stopped].pid
    os.kill(pid, signal.SIGSTOP)
    two.send(7, 0, 1)
    other = 1 - stopped
    await until(lambda: not Path(f"/proc/{pid}").exists())
    if stopped == 1:  # the source was told of it, and answers once the other is gone
        await until(lambda: two.ended(7) == {other: 0})
    await until(lambda: two.processes[stopped].pid not in (0, pid))
    two.links.close()
    await asyncio.gather(*(one.close() for one in two.processes))
    await asyncio.wait_for(asyncio.gather(*running), HANG_S)
    await spare.close()
