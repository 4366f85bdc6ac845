"""Links between workers: who gets which end, and what the Core hears of them."""

import asyncio
import logging
import os
import time

import pytest

from daemon.core.values.actions import Send
from daemon.core.values.events import LinkChanged, TransferEnded
from daemon.protocol.worker import CANCELLED, EndLink, LinkState, NewLink, TransferOver
from daemon.runtime import links as links_module
from daemon.runtime import transfer_watchdog as late_ends
from daemon.runtime.links import LinkBroker
from daemon.runtime.rank_links import RankSplit
from daemon.wire.columns import int32
from tests.supervisor.waiting import until
from tests.wire.descriptors import open_descriptors


class Told:
    """Links, what workers were handed, and what the Core heard."""

    def __init__(self, *splits: RankSplit | None) -> None:
        self.handed: list[tuple[int, NewLink]] = []
        self.by_rank: list[tuple[int, int, NewLink]] = []
        self.closed: list[tuple[int, int, int]] = []  # instance, rank, link
        self.heard: list[LinkChanged | TransferEnded] = []
        self.hung: list[int] = []
        self.stopped: set[int] = set()
        self.links = LinkBroker(
            self._hand,
            self.heard.append,
            self._hangs,
            self.stopped.__contains__,
            self._close,
            splits or [RankSplit()] * 3,
        )

    def _hand(self, instance: int, rank: int, message: NewLink, fd: int) -> None:
        os.fstat(fd)  # it is open
        self.by_rank.append((instance, rank, message))
        if rank == 0:
            self.handed.append((instance, message))

    def _close(self, instance: int, rank: int, message: EndLink) -> None:
        self.closed.append((instance, rank, message.link))

    def _hangs(self, instance: int, _why: str) -> None:
        self.hung.append(instance)

    def number(self, source: int, target: int) -> int:
        """The newest link from one to another."""
        ends = [(at, one.peer, one.sends, one.link) for at, one in self.handed]
        return max(link for *end, link in ends if end == [source, target, True])

    def says(
        self, instance: int, peer: int, sends: bool, is_up: bool, link: int, rank: int = 0
    ) -> None:
        self.links.state(instance, rank, LinkState(peer, sends, is_up, link))

    def sent_over(self, source: int, target: int) -> int:
        """The link that an order of the Core goes over now."""
        order = self.links.order(Send(7, source, target, int32([1]), int32([2]), 16, layered=True))
        assert (order.transfer, order.peer, order.num_tokens) == (7, target, 16)
        assert order.layered and not order.from_host
        return order.link


def two() -> Told:
    told = Told()
    told.links.ready(0)
    told.links.ready(1)
    return told


async def test_each_pair_gets_a_link_each_way() -> None:
    before = open_descriptors()
    told = Told()
    told.links.ready(2)
    assert told.handed == []
    told.links.ready(0)
    told.links.ready(1)
    by_number: dict[int, list[tuple[int, int, bool]]] = {}
    for at, message in told.handed:
        by_number.setdefault(message.link, []).append((at, message.peer, message.sends))
    for (a, b, sends), (c, d, takes) in by_number.values():
        assert (a, b) == (d, c) and sends and not takes
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    assert sorted(ends[0][:2] for ends in by_number.values()) == pairs
    for pair in pairs:
        assert told.sent_over(*pair) == told.number(*pair)
    assert open_descriptors() == before, "who got an end has it, and nobody else"


def test_the_core_hears_what_workers_say() -> None:
    told = two()
    began_s = time.monotonic()
    number = told.number(0, 1)
    told.says(1, 0, False, True, number)
    told.links.over(0, 0, TransferOver(7, 3, 0.25))
    changed, ended = told.heard
    assert isinstance(changed, LinkChanged) and isinstance(ended, TransferEnded)
    assert (changed.instance, changed.peer, changed.sends) == (1, 0, False)
    assert changed.is_up and changed.link == number
    assert (ended.instance, ended.transfer, ended.num_right, ended.elapsed_s) == (0, 7, 3, 0.25)
    assert began_s <= changed.now <= ended.now <= time.monotonic()


async def test_a_successor_gets_links_of_its_own() -> None:
    told = two()
    old = told.number(0, 1)
    told.links.lost(1)
    told.links.ready(1)
    assert told.number(0, 1) == told.sent_over(0, 1) != old
    num_handed = len(told.handed)
    told.says(0, 1, True, False, old)  # which it hears late
    assert len(told.handed) == num_handed and not told.links._timers


async def test_a_link_that_broke_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "FIRST_DELAY_S", 0.02)
    told = two()
    number = told.number(0, 1)
    told.says(0, 1, True, False, number)
    told.says(1, 0, False, False, number)
    assert told.number(0, 1) == number
    await asyncio.sleep(0.1)
    newer = told.number(0, 1)
    assert newer != number and len(told.handed) == 6, "once"
    told.says(0, 1, True, False, newer)
    await asyncio.sleep(0.025)
    assert told.number(0, 1) == newer, "each time it takes longer"
    told.links.lost(1)
    await asyncio.sleep(0.1)
    assert told.number(0, 1) == newer, "there is nobody to meet"
    told.links.close()


async def test_a_link_that_hangs_is_made_anew_and_then_who_owes_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the Core knows that the old link is down, what it orders goes nowhere else."""
    monkeypatch.setattr(late_ends, "LIMIT_S", 0.4)
    told = two()
    old = told.number(0, 1)
    assert told.sent_over(0, 1) == old
    told.links.over(0, 0, TransferOver(7, 1, 0.1))
    await until(lambda: told.number(0, 1) != old)
    newer = told.number(0, 1)
    assert told.hung == [] and told.sent_over(0, 1) == old
    told.says(0, 1, True, False, old)
    assert told.sent_over(0, 1) == newer
    told.links.over(0, 0, TransferOver(7, 1, 0.1))
    told.links.over(1, 0, TransferOver(7, 1, 0.1))
    assert told.sent_over(1, 0) == told.number(1, 0), "the other way is another link"
    await until(lambda: 1 in told.hung)
    told.links.lost(1)
    told.links.close()


async def test_ends_that_answer_in_time_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_ends, "LIMIT_S", 0.6)
    told = two()
    number = told.number(0, 1)
    for _ in range(5):  # longer than the limit in all, and one is always open
        told.sent_over(0, 1)
        await asyncio.sleep(0.3)
        told.links.over(0, 0, TransferOver(7, 1, 0.1))
    told.links.over(1, 0, TransferOver(7, 1, 0.1))
    await asyncio.sleep(1.5)
    assert told.hung == [] and told.number(0, 1) == number
    told.links.close()


async def test_a_worker_that_is_stopped_in_a_transfer_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_ends, "STOPPED_S", 0.4)
    told = two()
    told.stopped.add(1)
    await asyncio.sleep(0.8)
    assert told.hung == [], "it owes nothing"
    told.sent_over(0, 1)
    await until(lambda: told.hung == [1])
    told.links.close()


@pytest.mark.parametrize(
    ("why", "level"), [(CANCELLED, "DEBUG"), ("the receiver is gone", "WARNING")]
)
async def test_a_transfer_that_the_core_broke_off_is_no_warning(
    why: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = two()
    told.sent_over(0, 1)
    with caplog.at_level(logging.DEBUG):
        told.links.over(0, 0, TransferOver(7, 0, 0.0, why))
    (said,) = [one for one in caplog.records if "transfer 7" in one.getMessage()]
    assert said.levelname == level


TP2, PP2 = RankSplit(2), RankSplit(2, (1, 1))


def test_links_join_the_ranks_of_instances_that_divide_the_model_alike() -> None:
    told = Told(TP2, PP2, TP2, RankSplit(), None)
    for instance in range(5):
        told.links.ready(instance)
    ends = [(at, rank, message.peer, message.sends) for at, rank, message in told.by_rank]
    assert sorted(ends) == sorted(
        (at, rank, 2 - at, sends) for at in (0, 2) for rank in (0, 1) for sends in (False, True)
    )


def ranked() -> tuple[Told, int]:
    """Two instances of two ranks, and the link from the first, which is up."""
    told = Told(TP2, TP2)
    told.links.ready(0)
    told.links.ready(1)
    number = told.number(0, 1)
    for rank in (0, 1):
        assert told.heard == []
        told.says(0, 1, True, True, number, rank)
    return told, number


async def test_a_link_of_ranks_is_up_once_all_are_and_down_once_none_is() -> None:
    told, number = ranked()
    told.says(0, 1, True, False, number, rank=1)
    assert told.closed == [(0, 0, number)], "a part that still arrives would be written"
    (up,) = told.heard
    told.says(0, 1, True, False, number, rank=0)
    assert isinstance(up, LinkChanged) and up.is_up
    down = told.heard[-1]
    assert isinstance(down, LinkChanged) and not down.is_up and len(told.heard) == 2
    told.links.close()


async def test_a_link_that_one_rank_does_not_join_never_comes_up() -> None:
    told = Told(TP2, TP2)
    told.links.ready(0)
    told.links.ready(1)
    number = told.number(0, 1)
    told.says(1, 0, False, False, number, rank=0)
    told.says(1, 0, False, True, number, rank=1)
    assert told.heard == [] and told.closed == [(1, 1, number)]
    told.says(1, 0, False, False, number, rank=1)
    (down,) = told.heard
    assert isinstance(down, LinkChanged) and not down.is_up
    told.links.close()


async def test_a_transfer_of_ranks_is_over_once_all_parts_are() -> None:
    told, _ = ranked()
    told.heard.clear()
    told.sent_over(0, 1)
    told.links.over(0, 1, TransferOver(7, 3, 0.25))
    assert told.heard == []
    told.links.over(0, 0, TransferOver(7, 1, 0.5, "not all blocks arrived as they left"))
    (ended,) = told.heard
    assert isinstance(ended, TransferEnded)
    assert (ended.transfer, ended.num_right, ended.elapsed_s) == (7, 1, 0.5)
    told.links.close()


async def test_half_a_transfer_over_a_lost_link_leaves_nothing() -> None:
    """The other rank of the target never heard of it."""
    told, number = ranked()
    told.sent_over(0, 1)
    told.links.over(1, 0, TransferOver(7, 3, 0.25))
    for rank in (0, 1):
        told.says(1, 0, False, False, number, rank)
    assert told.links._ranks._parts == {}
    told.links.lost(0)
    told.links.lost(1)
    told.links.close()
