"""Ends of transfers that owe an answer for too long, so that no sequence waits for KV for ever.

A worker that is stopped, or whose link hangs while its steps go on, is no silence that a watch of
steps hears. Where a link brings nothing for long it is made anew: its ends answer what is open and
meet again. A worker that does not even do that hangs, and is ended.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from daemon.supervisor.patience import LOOK_S, Patience
from daemon.supervisor.silence import STOPPED_S

LIMIT_S = 30.0
"""So long no transfer over a link may end while some are open: steps before them included, and
longer than two ends wait for each other as they close (`DEAF_S` and `DYING_S`)."""

Pair = tuple[int, int]
"""Source and target."""


class Remedies(NamedTuple):
    """What can be done about an end that is late."""

    renew: Callable[[Pair, int], None]  # a link by its number
    hangs: Callable[[int, str], None]  # an instance's worker is to be ended, and why
    is_stopped: Callable[[int], bool]  # an instance's worker, by a signal


@dataclass(slots=True, eq=False)
class _Owing:
    """A link whose ends owe answers."""

    pair: Pair
    owed: dict[int, set[int]] = field(default_factory=dict)  # by transfer: instances
    patience: Patience = field(default_factory=Patience)
    renewed: bool = False

    @property
    def instances(self) -> set[int]:
        """Who owes."""
        return set().union(*self.owed.values())


class LateEnds:
    """Watches from the first transfer that is sent until none is open."""

    def __init__(self, remedies: Remedies) -> None:
        self._remedies = remedies
        self._links: dict[int, _Owing] = {}
        self._num_stopped: Counter[int] = Counter()  # looks in a row that found an instance so
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, transfer: int, pair: Pair, link: int) -> None:
        """Both ends owe an answer from now on."""
        one = self._links.setdefault(link, _Owing(pair))
        if not one.owed:
            one.patience.begin(time.monotonic())
        one.owed[transfer] = set(pair)
        if self._timer is None:
            self._look_soon()

    def answered(self, instance: int, transfer: int) -> None:
        """An end has answered."""
        for link, one in list(self._links.items()):
            if instance in one.owed.get(transfer, ()):
                self._settle(link, instance, [transfer])

    def closed(self, instance: int, link: int) -> None:
        """An end of a link is down: it owes nothing more."""
        if link in self._links:
            self._settle(link, instance, list(self._links[link].owed))

    def lost(self, instance: int) -> None:
        """A worker is gone, and owes nothing."""
        for link in list(self._links):
            self.closed(instance, link)
        del self._num_stopped[instance]

    def stop(self) -> None:
        """Watch no more."""
        self._links.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self, link: int, instance: int, transfers: list[int]) -> None:
        one = self._links[link]
        for transfer in transfers:
            one.owed[transfer].discard(instance)
            if not one.owed[transfer]:
                del one.owed[transfer]
        if not one.owed:
            del self._links[link]
        elif not one.renewed:
            one.patience.begin(time.monotonic())

    def _look_soon(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._links:
            self._num_stopped.clear()
            return
        self._look_soon()
        for instance in set().union(*(one.instances for one in self._links.values())):
            stopped = self._remedies.is_stopped(instance)
            self._num_stopped[instance] = self._num_stopped[instance] + 1 if stopped else 0
            if self._num_stopped[instance] * LOOK_S > STOPPED_S:
                self._num_stopped[instance] = 0
                self._remedies.hangs(instance, "stopped in the middle of a transfer")
        for link, one in list(self._links.items()):
            if one.patience.runs_out(time.monotonic(), LIMIT_S, lambda: 0.0):
                self._late(link, one)

    def _late(self, link: int, one: _Owing) -> None:
        one.patience.begin(time.monotonic())
        if one.renewed:
            for instance in sorted(one.instances):
                self._remedies.hangs(instance, f"no answer to a transfer in {2 * LIMIT_S:g} s")
        else:
            one.renewed = True
            self._remedies.renew(one.pair, link)
