"""The ledger of one pool: free + held + cached + fenced == total, always."""

from array import array

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

    Sequences hold a few dozen blocks, for which loops over plain arrays beat numpy's overhead.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.cache = PrefixCache(num_blocks)
        self._owners = array("i", bytes(4 * num_blocks))
        self._done_step = 0
        self._fences: dict[int, int] = {}  # block without owner -> the step it waits for
        self._named: dict[int, int] = {}  # block with owners -> newest step of a former owner
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones, and idle cached ones."""
        return len(self._free) + self.cache.num_idle

    @property
    def num_fenced(self) -> int:
        """Blocks that come back when steps in flight have answered."""
        return len(self._fences)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each with one owner; the caller has checked `num_available`."""
        lacking = count - len(self._free)
        if lacking > 0:
            if lacking > self.cache.num_idle:
                raise LedgerError(f"{count} blocks asked for, {self.num_available} available")
            self._free += self.cache.evict(lacking)
        start = len(self._free) - count
        blocks = self._free[start:]
        del self._free[start:]
        for block in blocks:
            self._owners[block] = 1
        return blocks

    def share(self, blocks: list[int]) -> None:
        """One more owner for each (distinct) block, be it held, cached or fenced."""
        for block in blocks:
            if not self._owners[block]:
                if block in self._fences:
                    self._named[block] = self._fences.pop(block)
                else:
                    self.cache.take(block)
            self._owners[block] += 1

    def release(self, blocks: list[int], last_step: int) -> None:
        """One owner less for each (distinct) block.

        `last_step` is the newest step in which this owner named them. A block waits for the
        newest step of all the owners it has had, not only of the one that lets go last. Later
        blocks of a sequence are worth less than earlier ones, so they are left first.
        """
        owners, named, idle = self._owners, self._named, []
        flying = last_step > self._done_step
        for block in reversed(blocks):
            left = owners[block] - 1
            owners[block] = left
            if flying or (named and block in named):
                newest = max(last_step, named.pop(block, 0))
                (named if left else self._fences)[block] = newest
            elif not left:
                idle.append(block)
        self._free += self.cache.leave(idle)

    def step_done(self, step: int) -> None:
        """Lift the fences of every step up to `step`."""
        self._done_step = step
        if self._fences:
            lifted = [block for block, fence in self._fences.items() if fence <= step]
            for block in lifted:
                del self._fences[block]
            self._free += self.cache.leave(lifted)
        if self._named:
            self._named = {block: named for block, named in self._named.items() if named > step}

    def idle_among(self, blocks: list[int]) -> int:
        """How many of these blocks count as available now and would not once shared."""
        return sum(1 for block in blocks if self.cache.is_idle(block))

    def uses(self) -> UInt8:
        """The BlockUse of every block, uint8 [num_blocks]."""
        uses = self.cache.named() * np.uint8(BlockUse.CACHED)
        uses[list(self._fences)] = BlockUse.FENCED
        uses[np.frombuffer(self._owners, np.int32) > 0] = BlockUse.HELD
        return uses

    def ledger(self) -> Ledger:
        """The counts as they are kept."""
        cached = self.cache.num_idle
        free = len(self._free)
        held = self.num_blocks - free - cached - len(self._fences)
        return Ledger(self.num_blocks, free, held, cached, len(self._fences))

    def check(self) -> Ledger:
        """The counts, after recounting every block. Raises LedgerError if they differ."""
        kept = self.ledger()
        owners = self.owners()
        free = int32(self._free)
        cached = int32(self.cache.idle_blocks())
        fenced = int32(list(self._fences))
        held = np.flatnonzero(owners)
        together = np.concatenate([free, cached, fenced, held])
        counted = Ledger(self.num_blocks, free.size, held.size, cached.size, fenced.size)
        if (owners < 0).any() or counted != kept:
            raise LedgerError(f"kept {kept}, counted {counted}")
        if together.size != self.num_blocks or np.unique(together).size != self.num_blocks:
            raise LedgerError(f"a block is in two uses or none: {counted}")
        return kept

    def owners(self) -> Int32:
        """Owner counts, int32 [num_blocks]; a copy."""
        return np.frombuffer(self._owners, np.int32).copy()

    def idle_state(self) -> tuple[Int32, Int32, bytes]:
        """(free list, cached blocks longest idle first, their digests) of a pool nobody uses."""
        cached = self.cache.idle_blocks()
        digests = b"".join(self.cache.digest(block) for block in cached)
        return int32(self._free), int32(cached), digests

    def restore_idle(self, free: Int32, cached: Int32, digests: bytes) -> None:
        """Put a new pool into the state that `idle_state` told. Raises LedgerError on nonsense."""
        self._free = free.tolist()
        for block, digest in zip(cached.tolist(), split_hashes(digests), strict=True):
            self.cache.register(digest, block)
        self.cache.leave(cached.tolist())
        self.check()
