"""A watchdog for transfers whose ends do not answer, so that no sequence waits for KV for ever.

A worker that is stopped, or whose link hangs while its steps go on, is not noticed by the watch
of its steps. A link over which no transfer ends for long is made anew: its ends answer their open
transfers and connect again. A worker that does not even do that hangs, and is ended.
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
"""Longest time without an end while transfers are open over a link. It includes the steps before
them, and exceeds how long two ends wait for each other as they close (`DEAF_S`, `DYING_S`)."""

Pair = tuple[int, int]
"""Source and target."""


class Remedies(NamedTuple):
    """The remedies for an end that is late."""

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
        """The instances that owe an answer."""
        return set().union(*self.owed.values())


class TransferWatchdog:
    """Watches from the first transfer that is sent until none is open."""

    def __init__(self, remedies: Remedies) -> None:
        self._remedies = remedies
        self._links: dict[int, _Owing] = {}
        self._num_stopped: Counter[int] = (
            Counter()
        )  # looks in a row at which an instance was stopped
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, transfer: int, pair: Pair, link: int) -> None:
        """Both ends owe an answer from now on."""
        owing = self._links.setdefault(link, _Owing(pair))
        if not owing.owed:
            owing.patience.begin(time.monotonic())
        owing.owed[transfer] = set(pair)
        if self._timer is None:
            self._look_soon()

    def answered(self, instance: int, transfer: int) -> None:
        """An end has answered."""
        for link, owing in list(self._links.items()):
            if instance in owing.owed.get(transfer, ()):
                self._settle(link, instance, [transfer])

    def owed_by(self, instance: int) -> set[int]:
        """The transfers whose end at this instance is open."""
        return {
            transfer
            for owing in self._links.values()
            for transfer, owes in owing.owed.items()
            if instance in owes
        }

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
        owing = self._links[link]
        for transfer in transfers:
            owing.owed[transfer].discard(instance)
            if not owing.owed[transfer]:
                del owing.owed[transfer]
        if not owing.owed:
            del self._links[link]
        elif not owing.renewed:
            owing.patience.begin(time.monotonic())

    def _look_soon(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._links:
            self._num_stopped.clear()
            return
        self._look_soon()
        for instance in set().union(*(owing.instances for owing in self._links.values())):
            stopped = self._remedies.is_stopped(instance)
            self._num_stopped[instance] = self._num_stopped[instance] + 1 if stopped else 0
            if self._num_stopped[instance] * LOOK_S > STOPPED_S:
                self._num_stopped[instance] = 0
                self._remedies.hangs(instance, "stopped in the middle of a transfer")
        for link, owing in list(self._links.items()):
            if owing.patience.runs_out(time.monotonic(), LIMIT_S, lambda: 0.0):
                self._late(link, owing)

    def _late(self, link: int, owing: _Owing) -> None:
        owing.patience.begin(time.monotonic())
        if owing.renewed:
            for instance in sorted(owing.instances):
                self._remedies.hangs(instance, f"no answer to a transfer in {2 * LIMIT_S:g} s")
        else:
            owing.renewed = True
            self._remedies.renew(owing.pair, link)
