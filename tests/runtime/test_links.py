"""Links between workers: who gets which end, and what the Core hears of them."""

import asyncio
import logging
import os
import time
from itertools import permutations

import pytest

from daemon.core.values.actions import Send
from daemon.core.values.events import LinkChanged, TransferEnded
from daemon.models.kv_parts import KVPart, RankSplit, rank_links
from daemon.models.rank_shares import Range
from daemon.protocol.worker import (
    CANCELLED,
    EndLink,
    LinkState,
    NewLink,
    NodeDoor,
    TransferOver,
)
from daemon.runtime import links as links_module
from daemon.runtime import transfer_watchdog as late_ends
from daemon.runtime.links import LinkBroker
from daemon.runtime.rank_links import PairLinks
from daemon.wire.columns import int32
from tests.runtime.ends import one_worker_each
from tests.shapes import tiny_shape
from tests.supervisor.waiting import until
from tests.wire.descriptors import open_descriptors


class Told:
    """Links, what workers were handed, and what the Core heard."""

    def __init__(
        self, pairs: PairLinks | None = None, doors: dict[int, NodeDoor] | None = None
    ) -> None:
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
            pairs or one_worker_each(3),
            (doors or {}).get,
        )
        self._on_nodes = bool(doors)

    def _hand(self, instance: int, rank: int, message: NewLink, fd: int | None) -> None:
        if self._on_nodes:
            assert fd is None
        else:
            assert fd is not None
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
        self,
        instance: int,
        peer: int,
        sends: bool,
        is_up: bool,
        link: int,
        rank: int = 0,
        to: int = -1,
    ) -> None:
        there = rank if to < 0 else to
        self.links.state(instance, rank, LinkState(peer, sends, is_up, link, peer_rank=there))

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


def on_nodes() -> tuple[Told, dict[int, NodeDoor]]:
    """Three workers on nodes."""
    doors = {at: NodeDoor(f"10.0.0.{at}", 1000 + at, b"", bytes([at])) for at in range(3)}
    told = Told(doors=doors)
    for at in range(3):
        told.links.ready(at)
    return told, doors


async def test_who_sends_to_a_worker_on_a_node_is_told_where_its_host_is() -> None:
    told, doors = on_nodes()
    assert len(told.handed) == 12
    for _at, message in told.handed:
        assert message.door == (doors[message.peer] if message.sends else None)


async def test_links_to_a_lost_node_are_ended_at_the_others() -> None:
    """Nothing else may tell them: a node that is gone says nothing."""
    told, _ = on_nodes()
    told.links.lost(1)
    ends = {(at, 0, told.number(*pair)) for at in (0, 2) for pair in ((at, 1), (1, at))}
    assert set(told.closed) == ends and len(told.closed) == 4


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


SHAPE = tiny_shape(num_layers=4, num_heads=6, num_kv_heads=3)
ONE, TP2, TP3, PP2 = RankSplit(), RankSplit(2), RankSplit(3), RankSplit(2, (1, 3))


def between(*splits: RankSplit) -> PairLinks:
    """The links of instances that divide the model so."""
    pairs = permutations(range(len(splits)), 2)
    return {(one, two): rank_links(SHAPE, splits[one], splits[two]) for one, two in pairs}


def test_links_join_the_ranks_of_instances_where_there_are_some() -> None:
    pairs = {pair: links for pair, links in between(TP2, PP2, TP2).items() if 1 not in pair}
    told = Told(pairs)
    for instance in range(5):
        told.links.ready(instance)
    ends = [(at, rank, message.peer, message.sends) for at, rank, message in told.by_rank]
    assert sorted(ends) == sorted(
        (at, rank, 2 - at, sends) for at in (0, 2) for rank in (0, 1) for sends in (False, True)
    )
    assert all(message.part is None for _, _, message in told.by_rank)


def test_ranks_of_unlike_splits_get_ends_for_the_parts_that_both_hold() -> None:
    told = Told(between(TP3, TP2))
    told.links.ready(0)
    told.links.ready(1)
    first = told.number(0, 1)
    ends = [
        (at, rank, one.peer_rank, one.sends, one.part)
        for at, rank, one in told.by_rank
        if one.link == first
    ]
    whole, head = KVPart(), (Range(0, 1), Range(1, 2))
    assert ends == [
        (0, 0, 0, True, whole),
        (1, 0, 0, False, whole),
        (0, 1, 1, True, whole),
        (1, 1, 1, False, KVPart(None, head[0])),
        (0, 2, 1, True, whole),
        (1, 1, 2, False, KVPart(None, head[1])),
    ]


async def test_a_link_of_unlike_splits_is_up_once_all_are_and_the_first_lost_ends_all() -> None:
    told = Told(between(TP3, TP2))
    told.links.ready(0)
    told.links.ready(1)
    number = told.number(0, 1)
    ends = [(0, 0), (1, 1), (1, 2)]  # rank 1 there has two
    for rank, to in ends:
        assert told.heard == []
        told.says(1, 0, False, True, number, rank, to)
    told.sent_over(0, 1)
    for rank, to in ends:
        assert len(told.heard) == 1
        right = 3 - to
        told.links.over(1, rank, TransferOver(7, right, 0.1, peer_rank=to))
    told.links.over(0, 0, TransferOver(7, 3, 0.1))
    ended = told.heard.pop()
    assert isinstance(ended, TransferEnded) and (ended.instance, ended.num_right) == (1, 1)
    told.says(1, 0, False, False, number, 1, 2)
    assert told.closed == [(1, 0, number), (1, 1, number)], "its own other one too"
    for rank, to in ends[:2]:
        assert len(told.heard) == 1
        told.says(1, 0, False, False, number, rank, to)
    down = told.heard[-1]
    assert isinstance(down, LinkChanged) and not down.is_up and len(told.heard) == 2
    told.links.close()


async def test_a_rank_of_which_the_target_needs_no_part_counts_for_nothing() -> None:
    shape = tiny_shape(num_layers=4, num_heads=4, num_kv_heads=1)
    pairs = {(0, 1): rank_links(shape, TP2, ONE), (1, 0): rank_links(shape, ONE, TP2)}
    assert [len(links) for links in pairs.values()] == [1, 2]
    told = Told(pairs)
    told.links.ready(0)
    told.links.ready(1)
    told.sent_over(0, 1)
    told.links.over(0, 1, TransferOver(7, 0, 0.0, "there is no such link to that worker"))
    assert told.heard == []
    told.links.over(0, 0, TransferOver(7, 3, 0.1))
    (ended,) = told.heard
    assert isinstance(ended, TransferEnded) and ended.num_right == 3
    told.links.close()


def ranked() -> tuple[Told, int]:
    """Two instances of two ranks, and the link from the first, which is up."""
    told = Told(between(TP2, TP2))
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
    told = Told(between(TP2, TP2))
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
    told.links.over(0, 1, TransferOver(7, 3, 0.25, peer_rank=1))
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
    told.links.lost(0)
    told.links.lost(1)
    assert told.links._ranks._parts == {}
    told.links.close()
