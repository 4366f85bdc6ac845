"""Load balancing: a sequence stuck in a queue moves to an instance that can run it now."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Listing
from itertools import chain
from typing import NamedTuple, Protocol

from daemon.placement.by_role import OVERFLOW_S
from daemon.scheduler.headroom import Headroom
from daemon.scheduler.scheduler import Scheduler
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.state.story import What


class Home(Protocol):
    """An instance as balancing sees it."""

    role: Role

    @property
    def scheduler(self) -> Scheduler:
        """Its scheduler."""

    @property
    def wait_s(self) -> float:
        """Predicted time to compute all that waits there."""

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that its whole pool can hold."""

    def takes(self, num_tokens: int) -> bool:
        """Whether it can hold a sequence of this length, and is not being drained."""


class Taker(NamedTuple):
    """An instance with room."""

    home: Home
    room: Headroom
    capacity_tokens: int  # the longest sequence that it can hold


LOOK = 512
"""Most stuck sequences of a queue that are passed, as they may not go where room is; the others
wait for the next time."""


class Balancer:
    """Moves stuck sequences to instances with headroom.

    A sequence moves if it would not be in the next plan of its own instance, all blocks that come
    there by themselves counted, and is in the next plan of the other: so it gains, and does not
    move again before that plan. Sequences are taken in their order; where one fits nowhere, none
    overtakes it to an instance that it might have gone to.
    """

    def __init__(self, homes: Listing[Home]) -> None:
        self._homes = homes
        self._givers: set[int] = set()  # where sequences wait
        self._content: set[int] = set()  # of them, without a stuck sequence

    @property
    def is_quiet(self) -> bool:
        """Whether no sequence is stuck where it waits, so that none would move."""
        return self._givers == self._content

    def balance(self, touched: Iterable[int], now: float) -> set[int]:
        """Move what should move; `touched` instances changed since the last call. Returns the
        changed ones.
        """
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
        idle = [home for home in homes if not home.scheduler.waiting and home.takes(0)]
        roles = {home.role for home in idle}
        givers.sort(key=lambda index: -homes[index].scheduler.waiting.num_uncomputed_tokens)
        takers: list[Taker] | None = None  # few givers have a stuck sequence
        changed: set[int] = set()
        for giver in givers:
            scheduler, welcome = homes[giver].scheduler, _Welcome(homes[giver], roles)
            if not (welcome.fresh or (welcome.begun and scheduler.waiting.num_begun)):
                continue
            stuck = _stuck(scheduler)
            first = next(stuck, None)
            if first is None:
                self._content.add(giver)
                continue
            if takers is None:
                takers = _with_room(idle)
            if not takers:
                break
            asked = _asked(first, stuck, scheduler, only_begun=not welcome.fresh)
            for sequence, taker in list(_moves(asked, welcome, takers)):
                scheduler.withdraw(sequence)
                sequence.story.add(now, What.MOVED, scheduler.instance)
                taker.scheduler.add(sequence, now)
                changed |= {giver, taker.scheduler.instance}
        return changed


class _Welcome:
    """The roles that take what waits at an instance. Roles are preferences: an instance that is
    there for other work takes it where the queue is too long, as Splitwise's mixed pool does.
    """

    def __init__(self, giver: Home, roles: set[Role]) -> None:
        """Split `roles` into takers of sequences without a token and of sequences with one."""
        if len(roles) > (giver.role in roles) and giver.wait_s > OVERFLOW_S:
            self.fresh = self.begun = roles
        else:
            self.fresh = {role for role in roles if role is giver.role or role is not Role.DECODE}
            self.begun = {role for role in roles if role is giver.role or role is not Role.PREFILL}

    def split(self, takers: list[Taker]) -> tuple[list[Taker], list[Taker]]:
        """(takers of sequences without a token, takers of those with one)."""
        fresh = [taker for taker in takers if taker.home.role in self.fresh]
        return fresh, [taker for taker in takers if taker.home.role in self.begun]


def _with_room(idle: list[Home]) -> list[Taker]:
    """The idle instances where a sequence fits, with their headroom."""
    return [
        Taker(home, room, home.capacity_tokens)
        for home in idle
        if not (room := Headroom(home.scheduler)).none
    ]


def _moves(
    stuck: Iterable[Sequence], welcome: _Welcome, takers: list[Taker]
) -> Iterator[tuple[Sequence, Home]]:
    """(sequence, its new instance) of those that move. A sequence that finds no room keeps those
    behind it from all instances that it may go to, and from no others.
    """
    left, num_passed = takers, 0
    fresh, begun = welcome.split(left)
    for sequence in stuck:
        able: list[Taker] = []
        taking = begun if sequence.num_output_tokens else fresh
        if taking and may_leave(sequence):
            limit = sequence.limit
            able = [taker for taker in taking if taker.capacity_tokens >= limit]
        if not able:
            num_passed += 1
            if num_passed == LOOK:
                return
            continue
        taker = next((taker for taker in able if taker.room.take(sequence)), None)
        if taker is not None:
            yield sequence, taker.home
            continue
        left = [taker for taker in left if taker not in able]
        fresh, begun = welcome.split(left)
        if not (fresh or begun):
            return


def _stuck(scheduler: Scheduler) -> Iterator[Sequence]:
    """The waiting sequences that its next plan will not have: from the first that does not fit."""
    room, waiting = Headroom(scheduler, later=True), iter(scheduler.waiting)
    first = next((sequence for sequence in waiting if not room.take(sequence)), None)
    return iter(()) if first is None else chain((first,), waiting)


def _asked(
    first: Sequence, behind: Iterator[Sequence], scheduler: Scheduler, only_begun: bool
) -> Iterator[Sequence]:
    """The stuck sequences: all, or only those that have begun."""
    if not only_begun:
        return chain((first,), behind)
    key = first.order_key
    return (begun for begun in scheduler.waiting.begun() if begun.order_key >= key)


def may_leave(sequence: Sequence) -> bool:
    """Whether nothing ties it to its instance: nothing of its KV is kept, it is no suspect, and no
    operator sent it there.
    """
    if sequence.ordered_to == sequence.instance:
        return False
    return not sequence.strikes and not sequence.residence.parked_tokens
