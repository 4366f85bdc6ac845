"""The ledger of reservations: the blocks that sequences may still take, beside those held."""

import numpy as np

from daemon.memory.block_pool import LedgerError
from daemon.wire.columns import Bools, Int32, Slots


class Reservations:
    """The reservations of one pool: for each slot how many blocks its sequence holds at most.

    A reserved block that is not held yet is an available one in the pool; sequences without a
    reservation must leave it there. Shared blocks are part of each owner's reservation and are
    held from the start, so that what matters is the sum of what is not held yet.

    Rows are slots, and `held` is the block table's own column: a block goes over from reserved to
    held as it is appended, and nothing is counted twice. What is not held yet is asked for at every
    growth and admission, so it is a running total: a slot with a reservation only gains blocks that
    `took` counts, and loses none before its reservation is given up.
    """

    def __init__(self, held: Int32) -> None:
        self._held = held
        self._most = np.zeros_like(held)  # 0: no reservation
        self.num_slots = 0  # with a reservation
        self.num_unheld = 0  # blocks of all reservations that are still to be taken

    def reserve(self, slot: int, num_blocks: int) -> None:
        """Reserve blocks for a slot that has no reservation, those it holds among them; the caller
        has checked that enough are unreserved.
        """
        self._most[slot] = num_blocks
        self.num_slots += 1
        self.num_unheld += num_blocks - int(self._held[slot])

    def release(self, slots: list[int]) -> None:
        """Give up the reservations of these slots, where they have one, before what they hold."""
        if self.num_slots:
            for slot in slots:
                if most := int(self._most[slot]):
                    self.num_slots -= 1
                    self.num_unheld -= most - int(self._held[slot])
                    self._most[slot] = 0

    def clear(self) -> None:
        """Give up all reservations."""
        if self.num_slots:
            self._most[:] = 0
            self.num_slots = self.num_unheld = 0

    def has(self, slot: int) -> bool:
        """Whether a slot has a reservation."""
        return bool(self._most[slot])

    def among(self, slots: Slots) -> Bools:
        """Whether each of these slots has a reservation; bool, as `slots`."""
        having: Bools = self._most[slots] > 0
        return having

    def most(self, slot: int) -> int:
        """The blocks that a slot may hold by its reservation; 0: it has none."""
        return int(self._most[slot])

    def unheld(self, slot: int) -> int:
        """The reserved blocks that a slot does not hold; 0 without a reservation."""
        return max(0, int(self._most[slot]) - int(self._held[slot]))

    def unheld_of(self, slots: Slots) -> Int32:
        """The same, of several slots; int32 [N]."""
        unheld: Int32 = (self._most[slots] - self._held[slots]).clip(0)
        return unheld

    def change(self, slot: int, by: int) -> None:
        """Let a slot that has a reservation hold `by` blocks more, or fewer."""
        self._most[slot] += by
        self.num_unheld += by

    def took(self, slots: Slots) -> None:
        """Count a block more for each of these slots: one of its reservation, where it has one. A
        slot that has outgrown its reservation reserves what it holds.
        """
        if self.num_slots:
            held, most = self._held[slots], self._most[slots]
            num_within = int(np.count_nonzero(held <= most))
            self.num_unheld -= num_within
            if num_within < slots.size:
                self._most[slots] = np.where(most > 0, np.maximum(held, most), most)

    def took_each(self, slots: Slots, before: Int32) -> None:
        """As `took`, where slots held `before` and hold any number more."""
        if self.num_slots:
            held, most = self._held[slots], self._most[slots]
            within = np.minimum(held, most) - np.minimum(before, most)
            self.num_unheld -= int(np.add.reduce(within))
            self._most[slots] = np.where(most > 0, np.maximum(held, most), most)

    def count_among(self, slots: Slots) -> int:
        """How many of these slots have a block reserved that they do not hold."""
        return int(np.count_nonzero(self._most[slots] > self._held[slots])) if self.num_slots else 0

    @property
    def num_reserved(self) -> int:
        """Blocks of all reservations, held or not; a shared block once for each owner."""
        return int(self._most.sum())

    @property
    def num_held(self) -> int:
        """The reserved blocks that are held."""
        return int(self._held[self._most > 0].sum())

    def check(self, num_available: int) -> None:
        """Raises LedgerError if a slot has more than was reserved for it, or if not every reserved
        block is there to be taken.
        """
        reserved = self._most > 0
        if np.count_nonzero(reserved) != self.num_slots:
            raise LedgerError(f"{self.num_slots} reservations kept, {reserved.sum()} counted")
        if (self._held[reserved] > self._most[reserved]).any():
            raise LedgerError("a slot holds more blocks than were reserved for it")
        unheld = int((self._most - self._held)[reserved].sum())
        if unheld != self.num_unheld:
            raise LedgerError(f"{self.num_unheld} blocks kept as reserved, {unheld} counted")
        if self.num_unheld > num_available:
            raise LedgerError(f"{self.num_unheld} blocks are reserved, {num_available} are there")
