"""Links between workers: who gets which end, and what the Core hears of them."""

import asyncio
import os
from typing import Any

import pytest

from daemon.core.actions import Send
from daemon.core.events import LinkChanged, TransferEnded
from daemon.protocol.worker import LinkState, NewLink, TransferOver
from daemon.runtime import links as links_module
from daemon.runtime.links import Links
from daemon.wire.columns import int32
from tests.wire.descriptors import open_descriptors


class Told:
    """Links, what workers were handed, and what the Core heard: (instance, peer, sends, is_up) of a
    link, (instance, transfer, num_right) of a transfer.
    """

    def __init__(self) -> None:
        self.handed: list[tuple[int, NewLink]] = []
        self.heard: list[tuple[Any, ...]] = []
        self.links = Links(self._hand, self._dispatch)

    def _hand(self, instance: int, message: NewLink, fd: int) -> None:
        os.fstat(fd)  # it is open
        self.handed.append((instance, message))

    def _dispatch(self, event: LinkChanged | TransferEnded) -> None:
        if isinstance(event, LinkChanged):
            self.heard.append((event.instance, event.peer, event.sends, event.is_up))
        else:
            self.heard.append((event.instance, event.transfer, event.num_right))

    def number(self, source: int, target: int) -> int:
        """The newest link from one to another."""
        return [m.link for at, m in self.handed if (at, m.peer, m.sends) == (source, target, True)][
            -1
        ]

    def says(self, instance: int, peer: int, sends: bool, is_up: bool, link: int) -> None:
        self.links.state(instance, LinkState(peer, sends, is_up, link=link))

    def up(self, source: int, target: int) -> int:
        """Both ends of the newest link say that it is up."""
        number = self.number(source, target)
        self.says(target, source, False, True, number)
        self.says(source, target, True, True, number)
        return number

    def take(self) -> list[tuple[Any, ...]]:
        """What the Core heard since."""
        heard, self.heard = self.heard, []
        return heard

    def send(self, transfer: int, source: int = 0, target: int = 1) -> int:
        """The link that the Core's order goes over."""
        order = self.links.order(Send(transfer, source, target, int32([1]), int32([2]), 16))
        return order.link if order is not None else -1


def two() -> Told:
    told = Told()
    told.links.ready(0)
    told.links.ready(1)
    return told


BOTH_UP = [(0, 1, True, True), (1, 0, False, True)]


def test_each_pair_gets_a_link_each_way() -> None:
    before = open_descriptors()
    told = Told()
    told.links.ready(2)
    assert told.handed == []
    told.links.ready(0)
    told.links.ready(1)
    ends = {(at, message.peer, message.sends) for at, message in told.handed}
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    assert ends == {(a, b, sends) for a, b in pairs for sends in (True, False)}
    by_number: dict[int, list[tuple[int, int, bool]]] = {}
    for at, message in told.handed:
        by_number.setdefault(message.link, []).append((at, message.peer, message.sends))
    assert len(by_number) == 6, "no number is used twice"
    for (a, b, sends), (c, d, takes) in by_number.values():
        assert (a, b) == (d, c) and sends and not takes
    assert open_descriptors() == before


def test_a_link_is_up_once_both_ends_say_so() -> None:
    told = two()
    number = told.number(0, 1)
    told.says(1, 0, False, True, number)
    assert told.take() == []
    told.says(0, 1, True, True, number)
    assert told.take() == BOTH_UP
    assert told.send(7) == number


@pytest.mark.parametrize("first", [0, 1])
async def test_an_end_that_is_down_has_answered_everything(first: int) -> None:
    told = two()
    number = told.up(0, 1)
    told.send(7)
    told.send(8)
    told.links.over(first, TransferOver(7, 1, 0.1))
    told.take()
    told.says(first, 1 - first, first == 0, False, number)
    assert told.take() == [(first, 8, 0), (first, 1 - first, first == 0, False)]
    told.links.over(first, TransferOver(8, 0, 0.1))  # the order reached it behind its link's end
    assert told.take() == [], "once is enough"
    other = 1 - first
    told.says(other, first, other == 0, False, number)
    assert told.take() == [(other, 7, 0), (other, 8, 0), (other, first, other == 0, False)]
    told.links.close()


def test_what_a_dead_worker_s_peer_says_late_is_past() -> None:
    """Its end of the old link says that it is up when the successor's link is there already."""
    told = two()
    old = told.number(0, 1)
    told.says(1, 0, False, True, old)
    told.links.lost(1)
    told.links.ready(1)
    new = told.number(0, 1)
    assert new != old
    told.says(1, 0, False, True, new)
    told.says(0, 1, True, True, old)
    assert told.take() == [], "these are ends of two links"
    told.says(0, 1, True, False, old)
    told.says(0, 1, True, True, new)
    assert told.take() == BOTH_UP


async def test_a_dead_worker_s_end_is_the_core_s_affair() -> None:
    told = two()
    number = told.up(0, 1)
    told.send(7)
    told.take()
    told.links.lost(1)
    told.links.over(1, TransferOver(7, 1, 0.1))
    assert told.take() == [], "it said so before it died, or never"
    told.links.ready(1)
    assert told.number(0, 1) != number
    told.links.over(0, TransferOver(7, 0, 0.1, "the receiver is gone"))
    told.says(0, 1, True, False, number)
    assert told.take() == [(0, 7, 0), (0, 1, True, False)]
    told.links.over(0, TransferOver(7, 0, 0.1))
    assert told.take() == []


async def test_an_order_without_a_link_is_answered_in_a_moment() -> None:
    told = two()
    assert told.send(7) == -1, "nobody said that it is up"
    assert told.take() == [], "the Core is in the middle of something"
    await asyncio.sleep(0)
    assert told.take() == [(0, 7, 0), (1, 7, 0)]
    told.links.lost(1)
    assert told.send(8) == -1
    await asyncio.sleep(0)
    assert told.take() == [(0, 8, 0)]


async def test_a_link_that_broke_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "FIRST_DELAY_S", 0.02)
    told = two()
    number = told.up(0, 1)
    told.says(0, 1, True, False, number)
    told.says(1, 0, False, False, number)
    assert told.number(0, 1) == number
    await asyncio.sleep(0.05)
    newer = told.number(0, 1)
    assert newer != number
    told.take()
    told.says(0, 1, True, False, newer)  # its ends did not meet
    await asyncio.sleep(0.025)
    assert told.number(0, 1) == newer, "each time it takes longer"
    told.links.lost(1)
    await asyncio.sleep(0.05)
    assert told.number(0, 1) == newer, "there is nobody to meet"
    assert told.take() == []
    told.links.close()
