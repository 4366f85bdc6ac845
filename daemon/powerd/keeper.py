"""Keeps each leased card at its leases' highest limit, and restores its own limit after them."""

import logging

from daemon.powerd.cards import CardPower, PowerCards
from daemon.powerd.frames import CapInForce, CardReading, LeaseCap, PowerError, ReadCard
from daemon.powerd.leases import PowerLeases, clamped_mw
from daemon.powerd.state import SavedLimits

log = logging.getLogger(__name__)


class PowerKeeper:
    """Leases, cards and the file of original limits; a card's limit is changed only here.

    A change that fails at first, since a card is lost, is remembered: `settle_again` retries it.
    """

    def __init__(self, cards: PowerCards, saved: SavedLimits) -> None:
        self._cards = cards
        self._saved = saved
        self._leases = PowerLeases()
        self._unsettled = set(saved.limits_mw)
        """Cards that may not have the right limit; after a crash all that had leases."""
        self._brought_mw: dict[str, int] = {}
        """The limits of leased cards as read after they were set; a card may round them."""
        self._said: dict[str, str] = {}

    @property
    def unsettled(self) -> bool:
        """Whether there is a change to retry."""
        return bool(self._unsettled)

    def lease(self, connection: int, asked: LeaseCap) -> CapInForce:
        """Change a connection's lease; return the limit in force then. Raises PowerError.

        A failed lease does not hold; a lease given back has ended, whether or not the card obeys
        yet.
        """
        if asked.watts is None:
            return _in_force(self._given_back(connection, asked.device))
        card = self._cards.look(asked.device)
        before = self._leases.held(connection, card.device)
        self._leases.put(connection, card.device, asked.watts)
        try:
            card = self._settle(card)
        except PowerError:
            self._leases.put(connection, card.device, before)
            self._unsettled.add(card.device)
            raise
        self._settled(card.device)
        return _in_force(card)

    def read(self, asked: ReadCard) -> CardReading:
        """A card's power and limits. Raises PowerError."""
        card, use = self._kept(self._cards.look(asked.device)), self._cards.use(asked.device)
        return CardReading(
            watts=use.power_mw / 1000,
            cap_watts=card.cap_mw / 1000,
            min_watts=card.min_mw / 1000,
            max_watts=card.max_mw / 1000,
            default_watts=card.default_mw / 1000,
            energy_j=None if use.energy_mj is None else use.energy_mj / 1000,
            binding=use.binding,
        )

    def drop(self, connection: int) -> None:
        """End a connection's leases."""
        self._unsettled.update(self._leases.drop(connection))
        self.settle_again()

    def settle_again(self) -> None:
        """Retry the changes that failed or were postponed; log each failure once."""
        for device in sorted(self._unsettled):
            try:
                self._settle(self._cards.look(device))
            except PowerError as error:
                self._say(device, str(error))
            else:
                self._settled(device)

    def end(self) -> bool:
        """End all leases; return whether every card has its own limit again."""
        self._leases.clear()
        self._unsettled.update(self._saved.limits_mw)
        self._said.clear()
        self.settle_again()
        return not self._unsettled

    def _given_back(self, connection: int, device: str) -> CardPower:
        if self._leases.held(connection, device) is not None:
            self._leases.put(connection, device, None)
            self._unsettled.add(device)
        card = self._cards.look(device)
        self._leases.put(connection, card.device, None)  # it may have been named otherwise
        card = self._settle(card)
        self._settled(card.device)
        return card

    def _kept(self, card: CardPower) -> CardPower:
        """Set a leased card's limit again where it was reset or changed from outside."""
        if card.cap_mw == self._brought_mw.get(card.device, card.cap_mw):
            return card
        try:
            kept = self._settle(card)
        except PowerError:  # said when it is tried again
            self._unsettled.add(card.device)
            return card
        text = (
            "%s had %g W though llmd-powerd did not set it; it has the lease's limit of %g W again"
        )
        log.warning(text, card.device, card.cap_mw / 1000, kept.cap_mw / 1000)
        return kept

    def _settle(self, card: CardPower) -> CardPower:
        """Bring a card to its right limit; return the card then. Raises PowerError.

        The original limit is on the disk before the card is changed, and until it is restored.
        """
        highest = self._leases.highest(card.device)
        original_mw = self._saved.limits_mw.get(card.device)
        if highest is not None:
            if original_mw is None:
                self._saved.remember(card.device, card.cap_mw)
                log.info("%s is leased; its own limit is %g W", card.device, card.cap_mw / 1000)
            card = self._brought(card, clamped_mw(highest, card.min_mw, card.max_mw))
            self._brought_mw[card.device] = card.cap_mw
            return card
        self._brought_mw.pop(card.device, None)
        if original_mw is None:
            return card
        wanted_mw = clamped_mw(original_mw / 1000, card.min_mw, card.max_mw)
        card = self._brought(card, wanted_mw)
        if card.cap_mw != wanted_mw:
            text = f"it should have {wanted_mw / 1000:g} W again and has {card.cap_mw / 1000:g} W"
            raise PowerError(f"{card.device}: {text}")
        self._saved.forget(card.device)
        log.info("%s has its own limit of %g W again", card.device, card.cap_mw / 1000)
        return card

    def _brought(self, card: CardPower, cap_mw: int) -> CardPower:
        if card.cap_mw == cap_mw:
            return card
        self._cards.set_cap(card.device, cap_mw)
        return self._cards.look(card.device)

    def _settled(self, device: str) -> None:
        self._unsettled.discard(device)
        if self._said.pop(device, ""):
            log.info("%s has the limit that it should have", device)

    def _say(self, device: str, text: str) -> None:
        if self._said.get(device) != text:
            self._said[device] = text
            log.error("%s; the file keeps its own limit, and it is tried again", text)


def _in_force(card: CardPower) -> CapInForce:
    return CapInForce(
        cap_watts=card.cap_mw / 1000,
        min_watts=card.min_mw / 1000,
        max_watts=card.max_mw / 1000,
        default_watts=card.default_mw / 1000,
    )
