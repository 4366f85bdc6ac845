"""Which physical block holds which stretch of each slot's sequence, and what changed."""

import numpy as np

from daemon.wire.columns import Int32, Slots, int32

_NONE = int32()


class BlockTable:
    """Rows of block numbers, one row a slot; changes are collected for the next step's plan."""

    def __init__(self, max_slots: int, max_blocks: int) -> None:
        self._rows = np.zeros((max_slots, max_blocks), np.int32)
        self.held = np.zeros(max_slots, np.int32)
        self._numbers = np.arange(max_blocks, dtype=np.int32)
        self._slots: list[Int32] = []
        self._indices: list[Int32] = []
        self._blocks: list[Int32] = []

    def blocks(self, slot: int) -> Int32:
        """The blocks of a slot, in order; a view."""
        return self._rows[slot, : self.held[slot]]

    def extend(self, slot: int, blocks: list[int]) -> None:
        """Append blocks to one slot's row."""
        start = int(self.held[slot])
        end = start + len(blocks)
        column = int32(blocks)
        self._rows[slot, start:end] = column
        self.held[slot] = end
        self._slots.append(np.full(column.size, slot, np.int32))
        self._indices.append(self._numbers[start:end])
        self._blocks.append(column)

    def extend_each(self, slots: Slots, blocks: Int32) -> None:
        """Append one block to each of several distinct slots."""
        indices = self.held[slots]
        self._rows[slots, indices] = blocks
        self.held[slots] = indices + 1
        self._slots.append(slots.astype(np.int32))
        self._indices.append(indices)
        self._blocks.append(blocks)

    def clear(self, slot: int) -> None:
        """Empty a slot's row; the worker needs not be told, nor of changes not yet taken."""
        self.held[slot] = 0
        if self._slots:
            slots, indices, blocks = self.take_changes()
            others = slots != slot
            self._slots.append(slots[others])
            self._indices.append(indices[others])
            self._blocks.append(blocks[others])

    def take_changes(self) -> tuple[Int32, Int32, Int32]:
        """(slots, indices, blocks) since the last call: each cell once, of slots in use."""
        if not self._slots:
            return _NONE, _NONE, _NONE
        if len(self._slots) == 1:
            changes = self._slots[0], self._indices[0], self._blocks[0]
        else:
            changes = (
                np.concatenate(self._slots),
                np.concatenate(self._indices),
                np.concatenate(self._blocks),
            )
        self._slots.clear()
        self._indices.clear()
        self._blocks.clear()
        return changes
