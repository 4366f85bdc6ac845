"""Blocks that are spoilt on their way: each one is found, and no token is lost or changed by it."""

import asyncio
import random
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from daemon.engine.batch.streams import Here
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.host_pool import HostPool
from daemon.engine.transfer.connect import EndPools, connect_receiver, connect_sender
from daemon.engine.transfer.faults import LinkFaults
from daemon.engine.transfer.messages import Done
from daemon.supervisor.spare import WORKER
from daemon.wire.columns import Int32, int32
from daemon.wire.faults import Fault, Faults
from tests.chaos.cases import Asker, toy_folder
from tests.chaos.clients import Clients
from tests.chaos.daemons import QUIET_S, check_ledgers, seed_of, toys
from tests.chaos.linked_run import Setting, asked_of, at_rest, linked_daemon, told
from tests.chaos.movers import Mover
from tests.chaos.strikes import FOLDER
from tests.engine.transfer.both_ends import SOURCE, TARGET, Pair, full
from tests.hangs import HANG_S

MOST_BLOCKS = 12
FLIP = "worker.link_flip"
ANSWERS = 300


class Spoiling(LinkFaults):
    """The corrupting fault, which strikes one part of a transfer's blocks: each time another."""

    def __init__(self) -> None:
        self.flip = Flip(1.0, 1)
        super().__init__(Faults({FLIP: self.flip}))


class Flip(Fault):
    """It strikes once, at the visit that was told."""

    after = -1

    def strikes(self) -> bool:
        self.after -= 1
        return self.after == -1


class Sent(NamedTuple):
    """A transfer of whose blocks one is spoilt."""

    blocks: Int32
    targets: Int32
    spoilt: int
    kind: str


def transfers(chance: random.Random, count: int) -> Iterator[Sent]:
    """So many, whole, layer by layer, and from host memory."""
    for number in range(count):
        size = chance.randrange(1, MOST_BLOCKS + 1)
        blocks = int32(chance.sample(range(SOURCE.num_blocks), size))
        targets = int32(chance.sample(range(TARGET.num_blocks), size))
        kind = ("whole", "layers", "host")[number % 3]
        yield Sent(blocks, targets, chance.randrange(size), kind)


def check_all_are_found(count: int, seed: int) -> int:
    """Spoil one block of each of so many transfers; how many were found."""
    chance, found = random.Random(seed), 0
    spoiling = Spoiling()

    def connect(source: PagedKV, target: PagedKV) -> tuple[object, object]:
        return joined(source, target, spoiling)

    with Pair(connect) as pair:  # type: ignore[arg-type]
        layers = pair.source.num_layers
        for number, sent in enumerate(transfers(chance, count)):
            before = pair.target.raw.clone()
            # Parts leave in order: of a transfer in layers, all blocks of one layer first.
            layer = chance.randrange(layers) if sent.kind == "layers" else 0
            spoiling.flip.after = layer * len(sent.blocks) + sent.spoilt
            order(pair, number, sent)
            answer, here = pair.received.get(timeout=HANG_S), pair.sent.get(timeout=HANG_S)
            assert isinstance(answer, Done) and isinstance(here, Done)
            assert here.num_right == len(sent.blocks) and not here.differs
            assert answer.differs and answer.num_right == sent.spoilt
            check_bytes(pair, sent, before)
            found += answer.differs
    return found


def joined(source: PagedKV, target: PagedKV, spoiling: Spoiling) -> tuple[object, object]:
    """Ends of which the sending one spoils blocks; its host pool holds what its pool does."""
    here, there = socket.socketpair()
    host = HostPool(source.num_blocks, source, compress=False)
    host.rows.copy_(source.raw)
    with ThreadPoolExecutor(1) as other:
        receiver = other.submit(connect_receiver, there, EndPools(target))
        ours = EndPools(source, host, faults=spoiling)
        return connect_sender(here, ours, num_slots=2, slot_bytes=4096), receiver.result()


def order(pair: Pair, number: int, sent: Sent) -> None:
    """Have a transfer sent in its way."""
    columns = sent.blocks, sent.targets, full(pair.source, sent.blocks)
    if sent.kind == "whole":
        pair.sender.send(number, *columns)
    elif sent.kind == "host":
        pair.sender.send_host(number, *columns, Here().record())
    else:
        pair.sender.begin_layers(number, *columns)
        pair.sender.after_step()


def check_bytes(pair: Pair, sent: Sent, before: torch.Tensor) -> None:
    """One block differs in one byte, and nothing but the targets was written."""
    targets = sent.targets.tolist()
    wrong = (pair.target.raw[targets] != pair.source.raw[sent.blocks.tolist()]).sum(1)
    assert wrong.tolist() == [int(place == sent.spoilt) for place in range(len(targets))]
    others = [one for one in range(len(before)) if one not in targets]
    assert torch.equal(pair.target.raw[others], before[others])


def test_50_spoilt_blocks_of_50_are_found() -> None:
    assert check_all_are_found(50, seed_of(21)) == 50


@pytest.mark.soak
def test_1000_spoilt_blocks_of_1000_are_found() -> None:
    assert check_all_are_found(1000, seed_of(22)) == 1000


async def check_answers_with_spoilt_blocks(
    folder: Path, quick: dict[str, str], seed: int, least: int
) -> None:
    """Every fifth block that leaves is spoilt; a toy that computed with one would say so."""
    subject = toys(toy_folder(folder / "toy"), Asker(seed, most_tokens=60).cases(12))
    asked = await asked_of(subject, folder / "alone.toml")
    env = {**quick, FOLDER: str(folder)}
    setting = Setting(subject._replace(worker=quick[WORKER]), env, asked)
    with linked_daemon(setting, folder / "llmd.toml", f"{FLIP}:1:5") as daemon:
        await at_rest(daemon)
        asking, mover = Clients(daemon.url, asked, seed), Mover(daemon, seed)
        tasks = [asyncio.create_task(asking.live()) for _ in range(6)]
        moving = asyncio.create_task(mover.live())
        try:
            while asking.tally.kinds.total() < least and not asking.tally.wrong:
                await asyncio.sleep(0.05)
        finally:
            asking.going = mover.going = False
        await asyncio.gather(moving, *tasks)
        assert not asking.tally.wrong, "\n".join(asking.tally.wrong[:5])
        seen, log = await at_rest(daemon), daemon.text()
        check_ledgers(seen)
        assert seen.counters.worker_deaths == seen.counters.failed == 0, log
        found = log.count("not all blocks arrived as they left")
        assert found and seen.counters.handoffs_failed >= found
        print(f"{found} transfers with spoilt blocks; {told(seen)}")
        daemon.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.process.wait, QUIET_S) == 0


@pytest.mark.soak
async def test_spoilt_blocks_change_no_answer(tmp_path: Path, quick: dict[str, str]) -> None:
    await check_answers_with_spoilt_blocks(tmp_path, quick, seed_of(23), ANSWERS)
