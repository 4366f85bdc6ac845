"""Load balancing: a sequence that waits in vain moves to an instance that can run it now."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Listing
from itertools import chain
from typing import Protocol

from daemon.scheduler.headroom import Headroom
from daemon.scheduler.scheduler import Scheduler
from daemon.sequence import Sequence
from daemon.story import What


class Home(Protocol):
    """An instance as balancing sees it."""

    @property
    def scheduler(self) -> Scheduler:
        """Its scheduler."""

    def can_hold(self, num_tokens: int) -> bool:
        """Whether its worker lives and its whole pool could hold so long a sequence."""


Taker = tuple[Home, Headroom]


def balance(homes: Listing[Home], now: float) -> int:
    """Move sequences that wait in vain to instances with headroom; how many moved.

    A sequence moves if it would not be in the next plan of its own instance, all blocks that come
    there by themselves counted, and is in the next plan of the other: so it gains, and does not
    move again before that plan. Sequences are taken in their order until one fits nowhere, so that
    nobody overtakes it.
    """
    givers = [home for home in homes if home.scheduler.waiting]
    if not givers or len(givers) == len(homes):
        return 0
    givers.sort(key=lambda home: -home.scheduler.waiting.num_tokens)
    takers: list[Taker] | None = None  # few givers have anybody who waits in vain
    num_moved = 0
    for giver in givers:
        stuck = _stuck(giver.scheduler)
        first = next(stuck, None)
        if first is None:
            continue
        if takers is None:
            takers = _takers(homes)
        if not takers:
            return 0
        for sequence, taker in list(_moves(chain([first], stuck), takers)):
            giver.scheduler.withdraw(sequence)
            sequence.story.add(now, What.MOVED, giver.scheduler.instance)
            taker.scheduler.add(sequence, now)
            num_moved += 1
    return num_moved


def _takers(homes: Listing[Home]) -> list[Taker]:
    """The instances where nobody waits and somebody fits, with their headroom."""
    idle = [home for home in homes if not home.scheduler.waiting and home.can_hold(0)]
    return [(home, room) for home in idle if not (room := Headroom(home.scheduler)).none]


def _moves(stuck: Iterable[Sequence], takers: list[Taker]) -> Iterator[tuple[Sequence, Home]]:
    """(sequence, its new instance) of those that move, up to the first that fits nowhere."""
    for sequence in stuck:
        able = [taker for taker in takers if taker[0].can_hold(sequence.limit)]
        if not able or not _may_leave(sequence):
            continue
        taker = next((home for home, room in able if room.take(sequence)), None)
        if taker is None:
            return
        yield sequence, taker


def _stuck(scheduler: Scheduler) -> Iterator[Sequence]:
    """The waiting sequences that its next plan will not have: from the first that does not fit."""
    room, found = Headroom(scheduler, later=True), False
    for sequence in scheduler.waiting:
        found = found or not room.take(sequence)
        if found:
            yield sequence


def _may_leave(sequence: Sequence) -> bool:
    """Whether nothing ties it to its instance: it has no KV in the host and is no suspect."""
    return not sequence.strikes and not sequence.residence.host_blocks
