"""A step while it is filled: rows in order, and the token budget that is left."""

import numpy as np

from daemon.scheduler.slots import SlotTable
from daemon.wire.columns import Int32, Slots, int32


class StepBuilder:
    """Collects rows; one whose sequence is preempted after it was added is dropped at the end."""

    def __init__(self, budget: int, table: SlotTable) -> None:
        self.budget = budget
        self.prompts: list[int] = []  # slots that got a chunk
        self._table = table
        self._departures = table.departures
        self._slots: list[Slots] = []
        self._counts: list[Int32] = []
        self._epochs: list[Int32] = []

    @property
    def empty(self) -> bool:
        """Whether no row was added."""
        return not self._slots

    def add_decodes(self, slots: Slots) -> None:
        """One token for each of these slots."""
        if slots.size:
            self._add(slots, np.ones(slots.size, np.int32))
            self.budget -= slots.size

    def add_prompt(self, slot: int, count: int) -> None:
        """A chunk of `count` tokens for one slot."""
        self._add(np.array([slot]), int32([count]))
        self.prompts.append(slot)
        self.budget -= count

    def rows(self) -> tuple[Slots, Int32]:
        """(slots, counts) of the rows whose sequences still have their slots."""
        if len(self._slots) == 1:
            slots, counts = self._slots[0], self._counts[0]
        else:
            slots, counts = np.concatenate(self._slots), np.concatenate(self._counts)
        if self._table.departures == self._departures:
            return slots, counts
        alive = self._table.epoch[slots] == np.concatenate(self._epochs)
        return slots[alive], counts[alive]

    def _add(self, slots: Slots, counts: Int32) -> None:
        self._slots.append(slots)
        self._counts.append(counts)
        self._epochs.append(self._table.epoch[slots])
