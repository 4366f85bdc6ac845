"""Which physical block holds which stretch of each slot's sequence, and what changed."""

import numpy as np

from daemon.wire.columns import Blocks, Int32, Slots, int32

_NONE = int32()


class BlockTable:
    """Rows of block numbers, one row a slot; changes are collected for the next step's plan."""

    def __init__(self, max_slots: int, max_blocks: int) -> None:
        self._rows = np.zeros((max_slots, max_blocks), np.intp)
        self.held = np.zeros(max_slots, np.int32)
        self._cells = self._rows.reshape(-1)  # cell = slot * max_blocks + index in its row
        self._max_blocks = max_blocks
        self._changed: list[int] = []  # cells that changed one slot at a time
        self._changed_wide: list[Slots] = []  # and those that changed many slots at a time

    def blocks(self, slot: int) -> Blocks:
        """The blocks of a slot, in order; a view."""
        return self._rows[slot, : self.held[slot]]

    def extend(self, slot: int, blocks: list[int]) -> None:
        """Append blocks to one slot's row."""
        held = int(self.held[slot])
        start = slot * self._max_blocks + held
        end = start + len(blocks)
        self._cells[start:end] = blocks
        self.held[slot] = held + len(blocks)
        self._changed += range(start, end)

    def extend_each(self, slots: Slots, blocks: list[int]) -> None:
        """Append one block to each of several distinct slots."""
        held = self.held[slots]
        cells = slots * self._max_blocks + held
        self._cells[cells] = blocks
        self.held[slots] = held + 1
        self._changed_wide.append(cells)

    def clear(self, slots: list[int]) -> None:
        """Empty slots' rows; the worker needs not be told, nor of changes not yet taken."""
        for slot in slots:
            self.held[slot] = 0
        if self._changed or self._changed_wide:
            cells = self._take_changed()
            others = ~np.isin(cells // self._max_blocks, slots)
            self._changed_wide.append(cells[others])

    def take_changes(self) -> tuple[Int32, Int32, Int32]:
        """(slots, indices, blocks) since the last call: each cell once, of slots in use."""
        if not (self._changed or self._changed_wide):
            return _NONE, _NONE, _NONE
        cells = self._take_changed()
        slots, indices = np.divmod(cells, self._max_blocks)
        blocks = self._cells[cells]
        return slots.astype(np.int32), indices.astype(np.int32), blocks.astype(np.int32)

    def _take_changed(self) -> Slots:
        """The cells that changed; from here on none has."""
        cells = np.array(self._changed, np.intp)
        if self._changed_wide:
            cells = np.concatenate([*self._changed_wide, cells])
        self._changed.clear()
        self._changed_wide.clear()
        return cells
