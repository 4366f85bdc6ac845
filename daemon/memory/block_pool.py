"""The ledger of one pool: free + held + cached + fenced == total, always."""

from collections import deque

import msgspec
import numpy as np

from daemon.memory.prefix_cache import PrefixCache
from daemon.wire.columns import Int32, UInt8


class LedgerError(RuntimeError):
    """The pool's counts do not add up: a bug, never a state to go on from."""


class Ledger(msgspec.Struct, frozen=True):
    """How many blocks are in each use."""

    total: int
    free: int
    held: int
    cached: int
    fenced: int


class BlockUse:
    """What a block is used for, in rising order of importance."""

    FREE = 0
    CACHED = 1
    FENCED = 2
    HELD = 3


class BlockPool:
    """`num_blocks` blocks with owners counted.

    A block that its last owner released stays *fenced* while a step in flight names it: it is
    coming, but nobody may take it yet. Then it is cached if its tokens are named, else free.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.cache = PrefixCache()
        self._owners = np.zeros(num_blocks, np.int32)
        self._fence = np.zeros(num_blocks, np.int64)
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks
        self._num_fenced = 0
        self._fences: deque[tuple[int, Int32]] = deque()

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones, and idle cached ones."""
        return self._num_free + self.cache.num_idle

    @property
    def num_fenced(self) -> int:
        """Blocks that come back when steps in flight have answered."""
        return self._num_fenced

    def allocate(self, count: int) -> Int32:
        """`count` blocks, each with one owner; the caller has checked `num_available`."""
        if count > self.num_available:
            raise LedgerError(f"{count} blocks asked for, {self.num_available} available")
        while self._num_free < count:
            self._push_free(np.array([self.cache.evict()], np.int32))
        self._num_free -= count
        blocks = self._free[self._num_free : self._num_free + count].copy()
        self._owners[blocks] = 1
        return blocks

    def share(self, blocks: list[int]) -> None:
        """One more owner for each block, be it held, cached or fenced."""
        for block in blocks:
            if self._owners[block] == 0:
                if self._fence[block]:
                    self._fence[block] = 0
                    self._num_fenced -= 1
                else:
                    self.cache.take(block)
            self._owners[block] += 1

    def release(self, blocks: Int32, fence_step: int) -> None:
        """One owner less for each (distinct) block.

        `fence_step` is the newest step in flight that names them, 0 if none does.
        """
        self._owners[blocks] -= 1
        idle = blocks[self._owners[blocks] == 0]
        if not idle.size:
            return
        if fence_step:
            self._fence[idle] = fence_step
            self._num_fenced += idle.size
            self._fences.append((fence_step, idle))
        else:
            self._settle(idle)

    def step_done(self, step: int) -> None:
        """Lift the fences of every step up to `step`."""
        waiting: deque[tuple[int, Int32]] = deque()
        while self._fences:
            fence_step, blocks = self._fences.popleft()
            if fence_step > step:
                waiting.append((fence_step, blocks))
                continue
            lifted = blocks[(self._fence[blocks] == fence_step) & (self._owners[blocks] == 0)]
            self._fence[lifted] = 0
            self._num_fenced -= lifted.size
            self._settle(lifted)
        self._fences = waiting

    def idle_among(self, blocks: list[int]) -> int:
        """How many of these blocks count as available now and would not once shared."""
        return sum(1 for block in blocks if self.cache.is_idle(block))

    def uses(self) -> UInt8:
        """The BlockUse of every block, uint8 [num_blocks]."""
        uses = np.full(self.num_blocks, BlockUse.FREE, np.uint8)
        uses[self.cache.idle_blocks()] = BlockUse.CACHED
        uses[self._fence > 0] = BlockUse.FENCED
        uses[self._owners > 0] = BlockUse.HELD
        return uses

    def ledger(self) -> Ledger:
        """The counts as they are kept."""
        cached = self.cache.num_idle
        held = self.num_blocks - self._num_free - cached - self._num_fenced
        return Ledger(self.num_blocks, self._num_free, held, cached, self._num_fenced)

    def check(self) -> Ledger:
        """The counts, after recounting every block. Raises LedgerError if they differ."""
        kept = self.ledger()
        free = self._free[: self._num_free]
        cached = self.cache.idle_blocks()
        fenced = np.flatnonzero(self._fence)
        held = np.flatnonzero(self._owners)
        together = np.concatenate([free, np.array(cached, np.int64), fenced, held])
        counted = Ledger(self.num_blocks, free.size, held.size, len(cached), fenced.size)
        if (self._owners < 0).any() or counted != kept:
            raise LedgerError(f"kept {kept}, counted {counted}")
        if together.size != self.num_blocks or np.unique(together).size != self.num_blocks:
            raise LedgerError(f"a block is in two uses or none: {counted}")
        return kept

    def owners(self) -> Int32:
        """Owner counts, int32 [num_blocks]; a copy."""
        return self._owners.copy()

    def _settle(self, blocks: Int32) -> None:
        """Blocks with no owner and no fence become cached (named ones) or free.

        Later blocks of a sequence are worth less than earlier ones, so they are left first.
        """
        unnamed = []
        for block in blocks[::-1].tolist():
            if self.cache.knows(block):
                self.cache.leave(block)
            else:
                unnamed.append(block)
        self._push_free(np.array(unnamed, np.int32))

    def _push_free(self, blocks: Int32) -> None:
        self._free[self._num_free : self._num_free + blocks.size] = blocks
        self._num_free += blocks.size
