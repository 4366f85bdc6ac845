"""Power limits of the instances' cards: llmd-powerd is read, and limits are leased, every second.

The governors (`daemon/power/`) choose the limits. Nothing here needs rights: without an
llmd-powerd the cards keep their limits and serve as they did.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from daemon.config.schema import PowerConfig
from daemon.control.orders import RefusalError
from daemon.power.governor import PowerGovernor
from daemon.power.looks import CardLimits, PowerSample
from daemon.powerd.client import PowerClient
from daemon.powerd.frames import (
    SERVICE_SOCKET,
    CapInForce,
    CardReading,
    PowerError,
    PowerLostError,
)
from daemon.protocol.control import Capped
from daemon.state.role import Role

INTERVAL_S = 1.0
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 5.0
_CHOSEN = "power limits are chosen through llmd-powerd at"

log = logging.getLogger(__name__)


class PowerFigures(NamedTuple):
    """The power figures of an instance in a snapshot; None is unknown."""

    watts: float | None
    cap_watts: float | None
    cap_pinned: bool
    energy_j: float | None
    cap_binding_share: float | None
    joules_per_token: float | None


class _CardLeases:
    """A connection to llmd-powerd and the limits leased through it; they end with it."""

    def __init__(self, client: PowerClient) -> None:
        self.client = client
        self._watts: dict[str, float] = {}  # by card
        self._turns = asyncio.Lock()

    async def keep(self, card: str, wish: Callable[[], float | None]) -> CapInForce | None:
        """Lease the wished limit for a card, one lease at a time; None: no wish, or it is leased.

        Raises PowerError: the previous lease still holds, while the connection does.
        """
        async with self._turns:
            watts = wish()
            if watts is None or watts == self._watts.get(card):
                return None
            in_force = await self.client.lease(card, watts)
            self._watts[card] = watts
            return in_force


class PowerCaps:
    """Keeps a lease for each card: the highest wish of the instances that compute on it."""

    def __init__(
        self,
        config: PowerConfig,
        cards: Sequence[Sequence[str]],
        roles: Sequence[Role],
        tpot_s: float,
    ) -> None:
        """`cards`: the UUIDs of each instance's. `run` begins."""
        self._enabled = config.enabled != "off"
        self._wanted = config.enabled == "on"
        self._path = Path(config.socket) if config.socket else SERVICE_SOCKET
        spelled: dict[str, str] = {}  # one card, however its instances spell it
        self._cards = [
            tuple(spelled.setdefault(card.lower(), card) for card in own) if self._enabled else ()
            for own in cards
        ]
        self._governors = [PowerGovernor(role, tpot_s, config.min_share) for role in roles]
        self._leases: _CardLeases | None = None
        self._readings: dict[str, CardReading] = {}  # the newest by card
        self._in_force: dict[str, float] = {}  # limits by card
        self._said: dict[str, str] = {}  # by subject
        self._roles_changed = asyncio.Event()

    def step(self, instance: int, elapsed_s: float, num_decodes: int, num_tokens: int) -> None:
        """A worker has answered a step."""
        self._governors[instance].step(elapsed_s, num_decodes, num_tokens)

    def set_roles(self, roles: Sequence[Role]) -> None:
        """Some instance has another role: its limit follows at once."""
        now = time.monotonic()
        for governor, role in zip(self._governors, roles, strict=True):
            governor.set_role(now, role)
        self._roles_changed.set()

    def figures(self, instance: int) -> PowerFigures:
        """The known power figures of an instance: all its cards' power and energy, and the lowest
        of their limits.
        """
        governor, cards = self._governors[instance], self._cards[instance]
        readings, look = self._all_readings(cards), governor.last_look
        limits = [self._in_force[card] for card in cards if card in self._in_force]
        return PowerFigures(
            watts=sum(reading.watts for reading in readings) if readings else None,
            cap_watts=min(limits, default=None),
            cap_pinned=governor.pinned_watts is not None,
            energy_j=len(cards) * governor.energy_j if governor.limits else None,
            cap_binding_share=look.binding_share if look else None,
            joules_per_token=_times(len(cards), look.joules_per_token if look else None),
        )

    async def pin(self, instance: int, name: str, watts: float | None) -> Capped:
        """Limit each of an instance's cards to `watts`, None: as its role asks. Raises
        RefusalError.
        """
        if watts is not None and not 0.0 < watts < math.inf:
            raise RefusalError(f"a cap is a number of watts above 0, not {watts:g}")
        governor, cards = self._governors[instance], self._cards[instance]
        if not self._enabled:
            raise RefusalError('power limits are not chosen here: power.enabled is "off"')
        if not cards:
            raise RefusalError(f"{name} has no card whose power could be limited")
        leases, limits = self._leases, governor.limits
        if leases is None:
            raise RefusalError(self._said.get("", f"no llmd-powerd was asked yet at {self._path}"))
        silent = next((card for card in cards if card not in self._readings), cards[0])
        if limits is None or silent not in self._readings:
            raise RefusalError(self._said.get(silent, f"{silent} has not reported its limits yet"))
        before = governor.pinned_watts
        governor.pin(time.monotonic(), watts)
        try:
            for card in cards:
                await self._lease(leases, card)
        except PowerError as error:  # a lease that came before is given back with the next reading
            governor.pin(time.monotonic(), before)
            raise RefusalError(f"the limit of {name} stays as it was: {error}") from error
        wish = governor.wish_watts
        assert wish is not None
        in_force = min(self._in_force.get(card, wish) for card in cards)
        return Capped(
            instance=name,
            asked_watts=watts,
            wish_watts=wish,
            cap_watts=in_force,
            min_watts=limits.min_watts,
            max_watts=limits.max_watts,
        )

    async def run(self) -> None:
        """Read and lease until cancelled; then every lease ends."""
        if not any(self._cards):
            return
        wait_s = FIRST_RETRY_S
        while True:
            try:
                client = await PowerClient.connect(self._path)
            except PowerLostError as error:
                level = logging.WARNING if self._wanted else logging.INFO
                self._say("", f"{error}: power limits stay as they are", level)
            else:
                if await self._talk(_CardLeases(client)):
                    wait_s = FIRST_RETRY_S
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LAST_RETRY_S)

    async def _talk(self, leases: _CardLeases) -> bool:
        """Serve while the connection lasts; return whether it reported on any card.

        A full or hanging service takes a connection and reports nothing.
        """
        self._leases, reported = leases, False
        try:
            while True:
                due_s = time.monotonic() + INTERVAL_S
                for card in dict.fromkeys(card for own in self._cards for card in own):
                    reported = await self._attend(leases, card) or reported
                    await self._follow_roles(leases)
                    if reported:
                        self._say("", f"{_CHOSEN} {self._path}", logging.INFO)
                await self._until(leases, due_s)
        except PowerLostError as error:
            self._say("", f"{error}: power limits are not chosen until it is back")
            return reported
        finally:
            leases.client.close()
            self._leases = None
            for card in list(self._readings):
                self._forget(card)

    async def _attend(self, leases: _CardLeases, card: str) -> bool:
        """Read a card and lease its wished limit; return whether it was read. Raises
        PowerLostError.
        """
        try:
            reading = await leases.client.read(card)
        except PowerLostError:
            raise
        except PowerError as error:
            self._say(card, f"power: {error}; it is tried again")
            self._forget(card)
            return False
        self._take(card, reading)
        if await self._follow(leases, card):
            self._said.pop(card, None)
        return True

    async def _follow(self, leases: _CardLeases, card: str) -> bool:
        """Lease the current wish; return whether the card has it. Raises PowerLostError."""
        try:
            await self._lease(leases, card)
        except PowerLostError:
            raise
        except PowerError as error:
            self._say(card, f"power: {error}; it is tried again")
            return False
        return True

    async def _until(self, leases: _CardLeases, due_s: float) -> None:
        """Wait, and follow changes of roles meanwhile. Raises PowerLostError."""
        while (left_s := due_s - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._roles_changed.wait()
            except TimeoutError:
                return
            await self._follow_roles(leases)

    async def _follow_roles(self, leases: _CardLeases) -> None:
        """Lease by the current roles, if some have changed. Raises PowerLostError."""
        if self._roles_changed.is_set():
            self._roles_changed.clear()
            for card in list(self._readings):
                await self._follow(leases, card)

    def _take(self, card: str, reading: CardReading) -> None:
        self._readings[card] = reading
        self._in_force[card] = reading.cap_watts
        now = time.monotonic()
        for cards, governor in zip(self._cards, self._governors, strict=True):
            if card not in cards[-1:]:  # the last of an instance's that is read
                continue
            if not (readings := self._all_readings(cards)):
                continue
            was = governor.wish_watts
            governor.sample(now, _limits_of(readings), _sample_of(readings))
            if governor.wish_watts != was:
                log.debug("power: %s W wished for %s: %s", governor.wish_watts, card, governor.why)

    def _all_readings(self, cards: Sequence[str]) -> list[CardReading]:
        """The newest readings of an instance's cards; none where one does not answer."""
        known = [self._readings[card] for card in cards if card in self._readings]
        return known if len(known) == len(cards) else []

    async def _lease(self, leases: _CardLeases, card: str) -> None:
        """Lease the highest wish, if it has changed. Raises PowerError."""
        in_force = await leases.keep(card, lambda: self._highest_wish(card))
        if in_force is not None:
            self._in_force[card] = in_force.cap_watts

    def _highest_wish(self, card: str) -> float | None:
        wishes = (governor.wish_watts for governor in self._on(card))
        return max((watts for watts in wishes if watts is not None), default=None)

    def _on(self, card: str) -> list[PowerGovernor]:
        pairs = zip(self._cards, self._governors, strict=True)
        return [governor for cards, governor in pairs if card in cards]

    def _forget(self, card: str) -> None:
        """Drop a card's figures: it does not answer for now."""
        self._readings.pop(card, None)
        self._in_force.pop(card, None)
        for governor in self._on(card):
            governor.lost(time.monotonic())

    def _say(self, subject: str, what: str, level: int = logging.WARNING) -> None:
        """Log a state once."""
        if self._said.get(subject) != what:
            self._said[subject] = what
            log.log(level, "%s", what)


def _limits_of(readings: Sequence[CardReading]) -> CardLimits:
    """The limits that each of an instance's cards accepts."""
    return CardLimits(
        max(reading.min_watts for reading in readings),
        min(reading.max_watts for reading in readings),
        min(reading.default_watts for reading in readings),
    )


def _times(count: int, joules: float | None) -> float | None:
    return None if joules is None else count * joules


def _sample_of(readings: Sequence[CardReading]) -> PowerSample:
    """The mean of an instance's cards; a limit binds if it binds any of them, as far as known."""
    energies = [reading.energy_j for reading in readings if reading.energy_j is not None]
    binding = [reading.binding for reading in readings if reading.binding is not None]
    count = len(readings)
    return PowerSample(
        sum(reading.watts for reading in readings) / count,
        sum(reading.cap_watts for reading in readings) / count,
        sum(energies) / count if len(energies) == count else None,
        any(binding) if len(binding) == count else None,
    )
