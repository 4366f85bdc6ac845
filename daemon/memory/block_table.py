"""The block table: the physical blocks of each slot's sequence, and their changes."""

import numpy as np

from daemon.wire.columns import ONE, Blocks, Int32, Slots, int32

_NONE = int32()


class BlockTable:
    """A row of block numbers for each slot; changes are collected for the next step's plan.

    Changes of one slot at a time are collected in lists, which become columns together; changes of
    many slots at a time are columns from the start.
    """

    def __init__(self, max_slots: int, max_blocks: int) -> None:
        self._rows = np.zeros((max_slots, max_blocks), np.intp)
        self.held = np.zeros(max_slots, np.int32)
        self._slots: list[int] = []
        self._indices: list[int] = []
        self._blocks: list[int] = []
        self._wide: list[tuple[Int32, Int32, Int32]] = []  # (slots, indices, blocks)

    def blocks(self, slot: int) -> Blocks:
        """The blocks of a slot, in order; a view."""
        return self._rows[slot, : self.held.item(slot)]

    def at(self, slot: int, cells: list[int]) -> Blocks:
        """The blocks in some cells of a slot; a copy."""
        return self._rows[slot, cells]

    def put(self, slot: int, cells: range, blocks: list[int]) -> None:
        """Put blocks into cells of one slot's row."""
        self._rows[slot, cells.start : cells.stop] = blocks
        self._slots += [slot] * len(blocks)
        self._indices += cells
        self._blocks += blocks

    def extend(self, slot: int, blocks: list[int]) -> None:
        """Append blocks to one slot's row."""
        count, start = len(blocks), self.held.item(slot)
        end = start + count
        self._rows[slot, start:end] = blocks
        self.held[slot] = end
        self._slots += [slot] * count
        self._indices += range(start, end)
        self._blocks += blocks

    def extend_each(self, slots: Slots, blocks: Blocks) -> None:
        """Append one block to each of several distinct slots."""
        indices = self.held[slots]
        self._rows[slots, indices] = blocks
        self.held[slots] = indices + ONE
        self._wide.append((slots.astype(np.int32), indices, blocks.astype(np.int32)))

    def clear(self, cleared: list[int]) -> None:
        """Empty these slots' rows, and drop their changes; the worker needs to know of neither."""
        for slot in cleared:
            self.held[slot] = 0
        if self._slots or self._wide:
            slots, indices, blocks = self.take_changes()
            kept = np.ones(self.held.size, np.bool_)
            kept[cleared] = False
            others = kept[slots]
            self._wide.append((slots[others], indices[others], blocks[others]))

    def take_changes(self) -> tuple[Int32, Int32, Int32]:
        """(slots, indices, blocks) since the last call: each cell once, of slots in use."""
        if self._slots:
            narrow = int32(self._slots), int32(self._indices), int32(self._blocks)
            self._wide.append(narrow)
            self._slots, self._indices, self._blocks = [], [], []
        wide, self._wide = self._wide, []
        if len(wide) < 2:
            return wide[0] if wide else (_NONE, _NONE, _NONE)
        slots, indices, blocks = zip(*wide, strict=True)
        return np.concatenate(slots), np.concatenate(indices), np.concatenate(blocks)
