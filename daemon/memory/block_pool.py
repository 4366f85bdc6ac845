"""The ledger of one pool: free + held + cached + fenced == total, always."""

import msgspec
import numpy as np

from daemon.memory.hashing import split_hashes
from daemon.memory.prefix_cache import PrefixCache
from daemon.wire.columns import Int32, UInt8, int32


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
        self._last_step = np.zeros(num_blocks, np.int64)
        self._done_step = 0
        self._fences: dict[int, int] = {}  # block -> the step it waits for
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones, and idle cached ones."""
        return self._num_free + self.cache.num_idle

    @property
    def num_fenced(self) -> int:
        """Blocks that come back when steps in flight have answered."""
        return len(self._fences)

    def allocate(self, count: int) -> Int32:
        """`count` blocks, each with one owner; the caller has checked `num_available`."""
        if count > self.num_available:
            raise LedgerError(f"{count} blocks asked for, {self.num_available} available")
        if count > self._num_free:
            self._push_free(int32(self.cache.evict(count - self._num_free)))
        self._num_free -= count
        blocks = self._free[self._num_free : self._num_free + count].copy()
        self._owners[blocks] = 1
        return blocks

    def share(self, blocks: list[int]) -> None:
        """One more owner for each (distinct) block, be it held, cached or fenced."""
        for block, owners in zip(blocks, self._owners[blocks].tolist(), strict=True):
            if owners == 0 and self._fences.pop(block, 0) == 0:
                self.cache.take(block)
        self._owners[blocks] += 1

    def release(self, blocks: Int32, last_step: int) -> None:
        """One owner less for each (distinct) block.

        `last_step` is the newest step in which this owner named them. A block waits for the
        newest step of all the owners it has had, not only of the one that lets go last.
        """
        self._owners[blocks] -= 1
        self._last_step[blocks] = np.maximum(self._last_step[blocks], last_step)
        idle = blocks[self._owners[blocks] == 0]
        steps = self._last_step[idle]
        fenced = steps > self._done_step
        if fenced.any():
            fences = zip(idle[fenced].tolist(), steps[fenced].tolist(), strict=True)
            self._fences.update(fences)
            idle = idle[~fenced]
        self._settle(idle.tolist())

    def step_done(self, step: int) -> None:
        """Lift the fences of every step up to `step`."""
        self._done_step = step
        if self._fences:
            lifted = [block for block, fence in self._fences.items() if fence <= step]
            for block in lifted:
                del self._fences[block]
            self._settle(lifted)

    def idle_among(self, blocks: list[int]) -> int:
        """How many of these blocks count as available now and would not once shared."""
        return sum(1 for block in blocks if self.cache.is_idle(block))

    def uses(self) -> UInt8:
        """The BlockUse of every block, uint8 [num_blocks]."""
        uses = np.full(self.num_blocks, BlockUse.FREE, np.uint8)
        uses[self.cache.idle_blocks()] = BlockUse.CACHED
        uses[list(self._fences)] = BlockUse.FENCED
        uses[self._owners > 0] = BlockUse.HELD
        return uses

    def ledger(self) -> Ledger:
        """The counts as they are kept."""
        cached = self.cache.num_idle
        held = self.num_blocks - self._num_free - cached - len(self._fences)
        return Ledger(self.num_blocks, self._num_free, held, cached, len(self._fences))

    def check(self) -> Ledger:
        """The counts, after recounting every block. Raises LedgerError if they differ."""
        kept = self.ledger()
        free = self._free[: self._num_free]
        cached = int32(self.cache.idle_blocks())
        fenced = int32(list(self._fences))
        held = np.flatnonzero(self._owners)
        together = np.concatenate([free, cached, fenced, held])
        counted = Ledger(self.num_blocks, free.size, held.size, cached.size, fenced.size)
        if (self._owners < 0).any() or counted != kept:
            raise LedgerError(f"kept {kept}, counted {counted}")
        if together.size != self.num_blocks or np.unique(together).size != self.num_blocks:
            raise LedgerError(f"a block is in two uses or none: {counted}")
        return kept

    def owners(self) -> Int32:
        """Owner counts, int32 [num_blocks]; a copy."""
        return self._owners.copy()

    def idle_state(self) -> tuple[Int32, Int32, bytes]:
        """(free list, cached blocks longest idle first, their digests) of a pool nobody uses."""
        cached = self.cache.idle_blocks()
        digests = b"".join(self.cache.digest(block) for block in cached)
        return self._free[: self._num_free].copy(), int32(cached), digests

    def restore_idle(self, free: Int32, cached: Int32, digests: bytes) -> None:
        """Put a new pool into the state that `idle_state` told. Raises LedgerError on nonsense."""
        self._num_free = 0
        self._push_free(free)
        for block, digest in zip(cached.tolist(), split_hashes(digests), strict=True):
            self.cache.register(digest, block)
            self.cache.leave(block)
        self.check()

    def _settle(self, blocks: list[int]) -> None:
        """Blocks with no owner and no fence become cached (named ones) or free.

        Later blocks of a sequence are worth less than earlier ones, so they are left first.
        """
        unnamed = []
        for block in reversed(blocks):
            if self.cache.knows(block):
                self.cache.leave(block)
            else:
                unnamed.append(block)
        self._push_free(int32(unnamed))

    def _push_free(self, blocks: Int32) -> None:
        self._free[self._num_free : self._num_free + blocks.size] = blocks
        self._num_free += blocks.size
