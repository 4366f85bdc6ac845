"""The links between workers: each ordered pair of workers that are ready has one at a time.

Each link has its own number, because a worker's message may arrive late: a pool is never written
over a link that was made for its predecessor.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from itertools import count

import msgspec

from daemon.core.values.actions import Send
from daemon.core.values.events import LinkChanged, TransferEnded
from daemon.protocol.worker import (
    CANCELLED,
    EndLink,
    LinkState,
    NewLink,
    NodeDoor,
    StartTransfer,
    TransferOver,
)
from daemon.runtime.rank_links import PairLinks, RankLinks
from daemon.runtime.transfer_watchdog import Pair, Remedies, TransferWatchdog

log = logging.getLogger(__name__)

FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
"""Delay before a broken link between two live workers is made anew; it doubles each time."""


class LinkBroker:
    """All links of a daemon; the workers' messages about them go through here."""

    def __init__(
        self,
        hand_out: Callable[[int, int, NewLink, int | None], None],
        dispatch: Callable[[LinkChanged | TransferEnded], None],
        hangs: Callable[[int, str], None],
        is_stopped: Callable[[int], bool],
        end_link: Callable[[int, int, EndLink], None],
        pairs: PairLinks,
        door_of: Callable[[int], NodeDoor | None] = lambda _instance: None,
    ) -> None:
        """`hand_out(instance, rank, message, descriptor)` and `end_link(instance, rank, message)`
        send to a rank; `hangs(instance, why)` ends all; `is_stopped(instance)` says whether a
        signal stopped one. `pairs`: the links of ranks, where there are some. `door_of(instance)`:
        where the host of a worker on a node takes links; no descriptor goes there.
        """
        self._pairs, self._door_of, self._end_link = pairs, door_of, end_link
        self._ranks = RankLinks(pairs, end_link)
        self._hand_out, self._dispatch = hand_out, dispatch
        self._numbers = count(1)
        self._ready: set[int] = set()
        self._newest: dict[Pair, int] = {}
        self._leaving: dict[Pair, int] = {}  # the Core still sends over it; a newer one follows
        self._late = TransferWatchdog(Remedies(self._renew, hangs, is_stopped))
        self._delays_s: dict[Pair, float] = {}
        self._timers: dict[Pair, asyncio.TimerHandle] = {}

    def ready(self, instance: int) -> None:
        """A worker is ready: it gets links to and from all others that are."""
        for other in sorted(self._ready - {instance}):
            for pair in ((instance, other), (other, instance)):
                if self._pairs.get(pair):
                    self._delays_s[pair] = FIRST_DELAY_S
                    self._join(pair)
        self._ready.add(instance)

    def lost(self, instance: int) -> None:
        """A worker is gone: no transfer goes to it or from it any more."""
        self._ready.discard(instance)
        self._end_far(instance)
        self._late.lost(instance)
        self._ranks.lost(instance)
        for pair in [pair for pair in self._leaving if instance in pair]:
            del self._leaving[pair]

    def order(self, action: Send) -> StartTransfer:
        """Make the message that starts the transfer, for the source's worker."""
        pair = action.source, action.target
        link = self._leaving.get(pair, self._newest[pair])
        self._late.sent(action.transfer, pair, link)
        self._ranks.sent(action.transfer, pair)
        return StartTransfer(
            transfer=action.transfer,
            peer=action.target,
            blocks=action.blocks,
            targets=action.targets,
            num_tokens=action.num_tokens,
            num_groups=action.num_groups,
            from_host=action.from_host,
            layered=action.layered,
            link=link,
            at_once=action.at_once,
        )

    def state(self, instance: int, rank: int, said: LinkState) -> None:
        """A rank's end of a link is up, or down."""
        state = self._ranks.state(instance, rank, said)
        if state is None:
            return
        peer, sends = state.peer, state.sends
        pair = (instance, peer) if sends else (peer, instance)
        if state.is_up and sends:
            way = "straight" if state.direct else "over host memory"
            log.debug("blocks can go from instance %d to %d, %s", *pair, way)
        elif not state.is_up:
            log.warning("link %d from instance %d to %d: %s", state.link, *pair, state.why)
            if self._newest.get(pair) == state.link:
                self._join_later(pair)
            if self._leaving.get(pair) == state.link:
                del self._leaving[pair]
            self._late.closed(instance, state.link)
            self._ranks.keep(instance, self._late.owed_by(instance))
        changed = LinkChanged(
            now=time.monotonic(),
            instance=instance,
            peer=peer,
            sends=sends,
            is_up=state.is_up,
            link=state.link,
        )
        self._dispatch(changed)

    def over(self, instance: int, rank: int, said: TransferOver) -> None:
        """A rank's end of a transfer is over."""
        over = self._ranks.over(instance, rank, said)
        if over is None:
            return
        if over.why:
            # A transfer that the Core cancelled, for a client that left, needs no attention.
            level = logging.DEBUG if over.why == CANCELLED else logging.WARNING
            log.log(level, "transfer %d at instance %d: %s", over.transfer, instance, over.why)
        self._late.answered(instance, over.transfer)
        answer = over.transfer, over.num_right, over.elapsed_s
        self._dispatch(TransferEnded(time.monotonic(), instance, *answer))

    def close(self) -> None:
        """Make no link anew any more."""
        self._late.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _join(self, pair: Pair) -> None:
        """Have all ranks of both close their old links and connect over new ones."""
        source, target = pair
        self._newest[pair] = number = next(self._numbers)
        for link in self._pairs[pair]:
            leaves = NewLink(target, True, number, link.target, link.sent)
            comes = NewLink(source, False, number, link.source, link.taken)
            if (door := self._door_of(target)) is not None:
                self._hand_out(target, link.target, comes, None)
                away = msgspec.structs.replace(leaves, door=door)
                self._hand_out(source, link.source, away, None)
                continue
            ends = socket.socketpair()
            with ends[0], ends[1]:
                self._hand_out(source, link.source, leaves, ends[0].fileno())
                self._hand_out(target, link.target, comes, ends[1].fileno())

    def _end_far(self, lost: int) -> None:
        """Have workers on other nodes close their links to a lost one: a node that is gone says
        nothing, and the connection to it may stay.
        """
        for pair, number in self._newest.items():
            other = pair[0] if pair[1] == lost else pair[1]
            if lost in pair and other in self._ready and self._door_of(other) is not None:
                self._end_link(other, 0, EndLink(lost, other == pair[0], number))

    def _renew(self, pair: Pair, link: int) -> None:
        """Replace a link that hangs: both ends close it and answer their open transfers."""
        if self._newest.get(pair) == link and self._ready.issuperset(pair):
            log.warning("link %d from instance %d to %d hangs: it is made anew", link, *pair)
            self._leaving[pair] = link
            self._join(pair)

    def _join_later(self, pair: Pair) -> None:
        """Make a new link after a delay: both workers live as far as is known, and it may last
        longer.
        """
        if pair in self._timers:
            return
        delay_s = self._delays_s[pair]
        self._delays_s[pair] = min(LONGEST_DELAY_S, 2 * delay_s)
        broken = self._newest[pair]

        def again() -> None:
            del self._timers[pair]
            if self._newest[pair] == broken and self._ready.issuperset(pair):
                self._join(pair)

        self._timers[pair] = asyncio.get_running_loop().call_later(delay_s, again)
