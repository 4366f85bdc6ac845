"""The queue of idle cached blocks: named, without an owner, the longest idle first."""

import numpy as np

from daemon.wire.columns import Blocks, Slots

_TAKEN = -1


class IdleQueue:
    """A queue from whose middle blocks can be taken.

    A block that is taken leaves a dead entry behind: one at an index that the block no longer has.
    Dead entries are skipped, and removed when the end of the array is reached.
    """

    def __init__(self, num_blocks: int) -> None:
        self._entries = np.zeros(2 * num_blocks, np.intp)
        self._place = np.full(num_blocks, _TAKEN, np.intp)  # block -> index of its entry
        self._head = self._tail = 0
        self.size = 0  # idle blocks

    def __contains__(self, block: int) -> bool:
        return bool(self._place[block] != _TAKEN)

    def count(self, blocks: list[int]) -> int:
        """How many of these blocks are in the queue."""
        place = self._place
        return len([block for block in blocks if place[block] != _TAKEN])

    def push(self, blocks: Blocks) -> None:
        """Append distinct blocks that are not in the queue."""
        if self._tail + blocks.size > self._entries.size:
            self._squeeze()
        end = self._tail + blocks.size
        self._entries[self._tail : end] = blocks
        self._place[blocks] = np.arange(self._tail, end)
        self._tail = end
        self.size += blocks.size

    def take(self, blocks: list[int]) -> None:
        """Take blocks out, wherever they stand. Raises LookupError at one that is not there."""
        place = self._place
        for block in blocks:
            if place[block] == _TAKEN:
                raise LookupError(f"block {block} is not idle")
            place[block] = _TAKEN
            self.size -= 1

    def pop(self, count: int) -> Blocks:
        """Take out the first `count`. Raises IndexError if there are fewer."""
        if count > self.size:
            raise IndexError(f"{count} of {self.size} idle blocks")
        entries = self._valid(self._head, min(self._head + 2 * count, self._tail))
        if entries.size < count:
            entries = self._valid(self._head, self._tail)
        blocks = self._entries[entries[:count]]
        if count:
            self._head = int(entries[count - 1]) + 1
            self._place[blocks] = _TAKEN
            self.size -= count
        return blocks

    def blocks(self) -> Blocks:
        """All idle blocks, longest idle first; a copy."""
        return self._entries[self._valid(self._head, self._tail)]

    def _valid(self, start: int, end: int) -> Slots:
        """Indices from `start` to `end` of entries whose blocks stand there."""
        indices: Slots = np.arange(start, end)
        return indices[np.equal(self._place[self._entries[start:end]], indices)]

    def _squeeze(self) -> None:
        blocks = self.blocks()
        self._entries[: blocks.size] = blocks
        self._place[blocks] = np.arange(blocks.size)
        self._head, self._tail = 0, blocks.size
