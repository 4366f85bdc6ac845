"""The links between workers, and what they say of them: the Core hears of nothing that is past.

Each ordered pair of workers that are ready has one link at a time, with a number of its own. The
Core hears that it is up when both ends have said so, since what a worker says arrives whenever that
worker comes to it; so a pool is never written over a link that was made for its predecessor.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from daemon.core.actions import Send
from daemon.core.events import LinkChanged, TransferEnded
from daemon.protocol.worker import LinkState, NewLink, SendBlocks, TransferOver

log = logging.getLogger(__name__)

FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
"""Before a link that broke between two workers that live is made anew; twice as long each time."""


@dataclass(slots=True)
class _Link:
    """A way from one worker to another."""

    number: int
    source: int
    target: int
    up: set[int] = field(default_factory=set)  # whose ends are up
    told: set[int] = field(default_factory=set)  # of whose ends the Core has heard that they are up
    broken: bool = False  # one of the ends is down


@dataclass(slots=True)
class _Transfer:
    """What the Core has ordered."""

    link: int
    began_s: float
    silent: set[int]  # instances whose ends have not answered


class Links:
    """All links of a daemon; what workers say of them goes through here."""

    def __init__(
        self,
        hand_out: Callable[[int, NewLink, int], None],
        dispatch: Callable[[LinkChanged | TransferEnded], None],
    ) -> None:
        """`hand_out(instance, message, descriptor)`: to the instance's worker."""
        self._hand_out, self._dispatch = hand_out, dispatch
        self._numbers = count(1)
        self._ready: set[int] = set()
        self._newest: dict[tuple[int, int], _Link] = {}  # by source and target
        self._links: dict[int, _Link] = {}  # by number: the newest, and those that are not over
        self._delays_s: dict[tuple[int, int], float] = {}
        self._transfers: dict[int, _Transfer] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    def ready(self, instance: int) -> None:
        """A worker is ready: it gets links to and from all others that are."""
        for other in sorted(self._ready - {instance}):
            for ends in ((instance, other), (other, instance)):
                self._delays_s[ends] = FIRST_DELAY_S
                self._join(*ends)
        self._ready.add(instance)

    def lost(self, instance: int) -> None:
        """A worker is gone, and says nothing any more; the Core knows what that means."""
        self._ready.discard(instance)
        for link in list(self._links.values()):
            if instance in (link.source, link.target):
                link.broken = True
                link.up.discard(instance)
                link.told.discard(instance)
                self._forget(link)
        for number in list(self._transfers):
            self._answered(number, instance)

    def order(self, action: Send) -> SendBlocks | None:
        """What the source's worker is told; from now on both ends are to answer.

        None where there is no link any more: what is to be answered is answered, in a moment.
        """
        link = self._newest.get((action.source, action.target))
        silent = {action.source, action.target} & self._ready
        if link is None or len(link.told) < 2:
            self._transfers[action.transfer] = _Transfer(0, time.monotonic(), silent)
            asyncio.get_running_loop().call_soon(self._answer_all, 0, silent)
            return None
        self._transfers[action.transfer] = _Transfer(link.number, time.monotonic(), silent)
        return SendBlocks(
            action.transfer,
            action.target,
            action.blocks,
            action.targets,
            action.num_tokens,
            action.from_host,
            action.layered,
            link.number,
        )

    def over(self, instance: int, over: TransferOver) -> None:
        """A worker's end of a transfer is over."""
        transfer = self._transfers.get(over.transfer)
        if transfer is None or not self._answered(over.transfer, instance):
            return
        if over.why:
            log.warning("transfer %d at instance %d: %s", over.transfer, instance, over.why)
        elif (link := self._links.get(transfer.link)) is not None:
            self._delays_s[_ends(link)] = FIRST_DELAY_S
        answer = over.transfer, over.num_right, over.elapsed_s
        self._dispatch(TransferEnded(time.monotonic(), instance, *answer))

    def state(self, instance: int, state: LinkState) -> None:
        """An end of a link is up, or down."""
        link = self._links.get(state.link)
        if link is None:
            return
        if state.is_up:
            link.up.add(instance)
            if len(link.up) == 2 and not link.broken:
                self._stands(link, state.direct)
            return
        ends = _ends(link)
        log.warning("the link %d to %d at instance %d is down: %s", *ends, instance, state.why)
        link.broken = True
        link.up.discard(instance)
        if instance in link.told:
            link.told.discard(instance)
            self._close(link, instance)
        if self._newest.get(ends) is link:
            self._join_later(link)
        self._forget(link)

    def close(self) -> None:
        """Make none anew any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _join(self, source: int, target: int) -> None:
        link = _Link(next(self._numbers), source, target)
        before = self._newest.get((source, target))
        self._newest[source, target] = self._links[link.number] = link
        if before is not None:
            before.broken = True
            self._forget(before)
        ends = socket.socketpair()
        with ends[0], ends[1]:
            self._hand_out(source, NewLink(target, True, link.number), ends[0].fileno())
            self._hand_out(target, NewLink(source, False, link.number), ends[1].fileno())

    def _stands(self, link: _Link, direct: bool) -> None:
        """Both ends are up."""
        way = "straight" if direct else "over host memory"
        log.info("blocks can go from instance %d to %d, %s", *_ends(link), way)
        for instance, peer, sends in _sides(link):
            link.told.add(instance)
            self._dispatch(LinkChanged(time.monotonic(), instance, peer, sends, True))

    def _close(self, link: _Link, instance: int) -> None:
        """An end that was up is down; it never heard of transfers that it has not answered."""
        self._answer_all(link.number, {instance})
        for one, peer, sends in _sides(link):
            if one == instance:
                self._dispatch(LinkChanged(time.monotonic(), instance, peer, sends, False))

    def _answer_all(self, link: int, instances: set[int]) -> None:
        """Answer for ends that will not: no copy of these transfers was begun there."""
        now = time.monotonic()
        for number, transfer in list(self._transfers.items()):
            for instance in sorted(instances):
                if transfer.link == link and self._answered(number, instance):
                    elapsed_s = now - transfer.began_s
                    self._dispatch(TransferEnded(now, instance, number, 0, elapsed_s))

    def _answered(self, number: int, instance: int) -> bool:
        """Whether an end's answer was awaited; it is not any more."""
        transfer = self._transfers.get(number)
        if transfer is None or instance not in transfer.silent:
            return False
        transfer.silent.discard(instance)
        if not transfer.silent:
            del self._transfers[number]
        return True

    def _join_later(self, link: _Link) -> None:
        """Both workers live, as far as is known: another link may last longer."""
        ends = _ends(link)
        delay_s = self._delays_s[ends]
        self._delays_s[ends] = min(LONGEST_DELAY_S, 2 * delay_s)
        del self._newest[ends]

        def again() -> None:
            self._timers.discard(timer)
            if ends not in self._newest and self._ready.issuperset(ends):
                self._join(*ends)

        timer = asyncio.get_running_loop().call_later(delay_s, again)
        self._timers.add(timer)

    def _forget(self, link: _Link) -> None:
        """Nobody speaks of a link any more that was broken and has no end that is up."""
        if link.broken and not link.up:
            self._links.pop(link.number, None)
            if self._newest.get(_ends(link)) is link:
                del self._newest[_ends(link)]


def _ends(link: _Link) -> tuple[int, int]:
    return link.source, link.target


def _sides(link: _Link) -> tuple[tuple[int, int, bool], tuple[int, int, bool]]:
    """Each end: whose it is, its peer, and whether blocks leave there."""
    return (link.source, link.target, True), (link.target, link.source, False)
