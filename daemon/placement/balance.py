"""Load balancing: a sequence that waits in vain moves to an instance that can run it now."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Listing
from itertools import chain
from typing import Protocol

from daemon.placement.by_role import OVERFLOW_S
from daemon.role import Role
from daemon.scheduler.headroom import Headroom
from daemon.scheduler.scheduler import Scheduler
from daemon.sequence import Sequence
from daemon.story import What


class Home(Protocol):
    """An instance as balancing sees it."""

    role: Role

    @property
    def scheduler(self) -> Scheduler:
        """Its scheduler."""

    @property
    def wait_s(self) -> float:
        """Predicted time to compute all that waits there."""

    def takes(self, num_tokens: int) -> bool:
        """Whether it can hold so long a sequence, and is not to be left."""

    def suits(self, sequence: Sequence) -> bool:
        """Whether its role is to compute what comes next of a sequence."""


Taker = tuple[Home, Headroom]


class Balancer:
    """Moves sequences that wait in vain to instances with headroom.

    A sequence moves if it would not be in the next plan of its own instance, all blocks that come
    there by themselves counted, and is in the next plan of the other: so it gains, and does not
    move again before that plan. Sequences are taken in their order; where one fits nowhere, nobody
    overtakes it to where it might have gone.
    """

    def __init__(self, homes: Listing[Home]) -> None:
        self._homes = homes
        self._givers: set[int] = set()  # where somebody waits
        self._content: set[int] = set()  # of them, where nobody waits in vain

    def balance(self, touched: Iterable[int], now: float) -> set[int]:
        """Move what should; `touched` changed since the last call. Returns which it changed."""
        for index in touched:
            self._content.discard(index)
            if self._homes[index].scheduler.waiting:
                self._givers.add(index)
            else:
                self._givers.discard(index)
        if len(self._givers) == len(self._homes) or self._givers == self._content:
            return set()
        return self._move(sorted(self._givers - self._content), now)

    def _move(self, givers: list[int], now: float) -> set[int]:
        homes = self._homes
        givers.sort(key=lambda index: -homes[index].scheduler.waiting.num_tokens)
        takers: list[Taker] | None = None  # few givers have anybody who waits in vain
        changed: set[int] = set()
        for giver in givers:
            scheduler = homes[giver].scheduler
            stuck = _stuck(scheduler)
            first = next(stuck, None)
            if first is None:
                self._content.add(giver)
                continue
            if takers is None:
                takers = _takers(homes)
            if not takers:
                break
            for sequence, taker in list(_moves(chain([first], stuck), homes[giver], takers)):
                scheduler.withdraw(sequence)
                sequence.story.add(now, What.MOVED, scheduler.instance)
                taker.scheduler.add(sequence, now)
                changed |= {giver, taker.scheduler.instance}
        return changed


def _takers(homes: Listing[Home]) -> list[Taker]:
    """The instances where nobody waits and somebody fits, with their headroom."""
    idle = [home for home in homes if not home.scheduler.waiting and home.takes(0)]
    return [(home, room) for home in idle if not (room := Headroom(home.scheduler)).none]


def _moves(
    stuck: Iterable[Sequence], giver: Home, takers: list[Taker]
) -> Iterator[tuple[Sequence, Home]]:
    """(sequence, its new instance) of those that move. Who finds no room keeps those behind it from
    all instances that it may go to, and from no others.
    """
    left = takers
    for sequence in stuck:
        able = [taker for taker in left if _may_take(taker[0], giver, sequence)]
        if not able or not may_leave(sequence):
            continue
        taker = next((home for home, room in able if room.take(sequence)), None)
        if taker is not None:
            yield sequence, taker
            continue
        left = [taker for taker in left if taker not in able]
        if not left:
            return


def _stuck(scheduler: Scheduler) -> Iterator[Sequence]:
    """The waiting sequences that its next plan will not have: from the first that does not fit."""
    room, found = Headroom(scheduler, later=True), False
    for sequence in scheduler.waiting:
        found = found or not room.take(sequence)
        if found:
            yield sequence


def may_leave(sequence: Sequence) -> bool:
    """Whether nothing ties it to its instance: nothing of its KV is kept, it is no suspect, and no
    operator sent it there.
    """
    if sequence.ordered_to == sequence.instance:
        return False
    return not sequence.strikes and not sequence.residence.parked_tokens


def _may_take(home: Home, giver: Home, sequence: Sequence) -> bool:
    """Whether a sequence may go there. Roles are preferences: an instance that is there for other
    work takes it where the queue is too long, as Splitwise's mixed pool does.
    """
    if not home.takes(sequence.limit):
        return False
    return home.role is giver.role or home.suits(sequence) or giver.wait_s > OVERFLOW_S
