"""Transfers between two real workers that go wrong: every end answers, and nothing wrong counts."""

import random
import signal

import pytest

from daemon.protocol.worker import LinkState, Plan, Reply, TransferOver
from daemon.wire.faults import Fault
from tests.engine.driver import Driver
from tests.engine.tiny import save
from tests.engine.transfer.linked_workers import NUM_BLOCKS, Linked, Two
from tests.soak import tries

GONE = {"here": "the receiver is gone", "there": "the sender is gone"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save("llama", tmp_path_factory.mktemp("llama")))


def still_computes(one: Linked) -> bool:
    """Whether a worker answers plans."""
    one.worker.send(_empty(one.plans))
    return bool(one.next(Reply).step == one.plans.step)


def _empty(plans: Driver) -> Plan:
    return plans.plan([])


def test_wrong_blocks_are_all_found(folder: str, quick: dict[str, str]) -> None:
    """Transfers of whose blocks each is spoilt with a probability; nothing else is."""
    blocks_of = random.Random(3)
    probability, seed = 0.1, 1
    spoilt = Fault(probability, seed)
    with Two(folder, quick, f"worker.link_flip:{probability}:{seed}") as two:
        two.joined()
        num_wrong = 0
        for _ in range(tries(80, 300)):
            blocks, targets = (blocks_of.sample(range(NUM_BLOCKS), 12) for _ in range(2))
            wrong = [spoilt.strikes() for _ in blocks]
            here, there = two.overs(two.send(blocks, targets))
            assert here.num_right == 12
            assert there.num_right == (wrong.index(True) if any(wrong) else 12)
            assert there.why == ("not all blocks arrived as they left" if any(wrong) else "")
            num_wrong += any(wrong)
        assert tries(40, 150) < num_wrong < tries(75, 280)
        assert still_computes(two.there)


@pytest.mark.soak
def test_every_third_block_is_wrong(folder: str, quick: dict[str, str]) -> None:
    with Two(folder, quick, "worker.link_flip:1:3") as two:
        two.joined()
        rights = [two.overs(two.send([1, 2, 3, 4], [9, 8, 7, 6]))[1].num_right for _ in range(3)]
        assert rights == [2, 1, 0], "each of 1 .. 12 that is 3, 6, 9 or 12"


@pytest.mark.soak
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_link_that_breaks_midway(folder: str, quick: dict[str, str], stage: int) -> None:
    """Both ends answer before they say that the link is down, and take the next one."""
    with Two(folder, quick, f"worker.link_break:1:{stage}") as two:
        two.joined()
        number = two.send([1, 2], [3, 4])
        for one, why in ((two.here, GONE["here"]), (two.there, GONE["there"])):
            heard = stage > 1 or one is two.here
            if heard:
                over = one.next(TransferOver)
                landed = one is two.there and stage == 3
                assert (over.transfer, over.num_right) == (number, 2 if landed else 0)
                assert over.why == ("" if landed else why)
            down = one.next(LinkState)
            assert (down.is_up, down.link, down.why) == (False, two.number, why)
        two.joined()
        assert still_computes(two.here) and still_computes(two.there)


@pytest.mark.soak
def test_ends_that_do_not_meet(folder: str, quick: dict[str, str]) -> None:
    with Two(folder, quick, "worker.link_break:1:0") as two:
        two.join()
        for one in (two.here, two.there):
            down = one.next(LinkState)
            assert not down.is_up and "broken: injected" in down.why
        assert still_computes(two.here) and still_computes(two.there)


@pytest.mark.soak
@pytest.mark.parametrize("killed", ["here", "there"])
def test_a_killed_worker(folder: str, quick: dict[str, str], killed: str) -> None:
    """Its peer answers for its own end, and computes on."""
    with Two(folder, quick, "worker.link_slow:1:200") as two:
        two.joined()
        dead, alive = (two.here, two.there) if killed == "here" else (two.there, two.here)
        number = two.send([1, 2, 3], [4, 5, 6], layered=True)
        two.here.worker.send(_empty(two.here.plans))  # all layers go behind it, slowly
        assert two.here.next(Reply)
        assert two.here.says_no(TransferOver, 0.3)
        dead.worker.process.send_signal(signal.SIGKILL)
        over, down = alive.next(TransferOver), alive.next(LinkState)
        why = "the sender is gone" if killed == "here" else "the receiver is gone"
        assert (over.transfer, over.num_right, over.why) == (number, 0, why)
        assert (down.is_up, down.why) == (False, why)
        assert still_computes(alive)
        assert alive.says_no(TransferOver), "once is enough"
