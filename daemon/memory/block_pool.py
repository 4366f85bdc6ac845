"""The ledger of one pool: free + held + cached + fenced == total, always."""

from array import array

import msgspec
import numpy as np

from daemon.memory.hashing import split_hashes
from daemon.memory.prefix_cache import PrefixCache
from daemon.wire.columns import Blocks, Bools, Int32, UInt8, all_true, int32

_FEW = 100
"""For fewer blocks a loop is quicker than numpy."""


class LedgerError(RuntimeError):
    """The pool's counts do not add up; this is a bug, and the pool must not be used any more."""


class Ledger(msgspec.Struct, frozen=True):
    """The number of blocks in each use."""

    total: int
    free: int
    held: int
    cached: int
    fenced: int


class BlockUse:
    """The uses of a block, in rising order of importance."""

    FREE = 0
    CACHED = 1
    FENCED = 2
    HELD = 3


class BlockPool:
    """A pool of `num_blocks` blocks, with a count of owners for each.

    A block that its last owner released stays *fenced* while a step or a swap copy in flight names
    it: it may not be taken yet. Then it is cached if its tokens are named, else free. Copies are
    counted by the step whose plan ordered them.

    A few blocks are shared at a time, for which loops over plain arrays beat numpy's overhead; many
    are taken and come back at once. So owners are an array with a numpy view of the same memory.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.cache = PrefixCache(num_blocks)
        self._evict_at_once = min(32, num_blocks // 256)  # forgetting is cheaper in bulk
        self._owners = array("i", bytes(4 * num_blocks))
        self._owners_column = np.frombuffer(self._owners, np.int32)
        self._done_step = 0
        self._last_steps = np.zeros(num_blocks, np.int64)  # newest that a former owner named it in
        self._newest_step = 0  # of these
        self._done_copies = 0
        self._last_copies = np.zeros(num_blocks, np.int64)  # newest that names it, owned or not
        self._newest_copy = 0
        self._fenced: dict[int, None] = {}  # blocks without owner that wait for steps or copies
        self._free = np.arange(num_blocks - 1, -1, -1)  # a stack: the first `num_free` of it
        self.num_free = num_blocks  # blocks that nothing is kept in

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones, and idle cached ones."""
        return self.num_free + self.cache.idle.size

    @property
    def num_held(self) -> int:
        """Blocks that have an owner."""
        return self.num_blocks - self.num_free - self.cache.idle.size - len(self._fenced)

    @property
    def num_fenced(self) -> int:
        """Blocks that come back when steps and copies in flight have answered."""
        return len(self._fenced)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each with one owner; the caller has checked `num_available`."""
        blocks: list[int] = self.allocate_column(count).tolist()
        return blocks

    def allocate_column(self, count: int) -> Blocks:
        """The same as a column."""
        lacking = count - self.num_free
        if lacking > 0:
            idle = self.cache.idle.size
            if lacking > idle:
                raise LedgerError(f"{count} blocks asked for, {self.num_available} available")
            self._free_again(self.cache.evict(max(lacking, min(self._evict_at_once, idle))))
        start = self.num_free - count
        blocks = self._free[start : self.num_free].copy()
        self.num_free = start
        self._owners_column[blocks] = 1
        return blocks

    def _free_again(self, blocks: Blocks) -> None:
        """Put blocks in which nothing is kept any more on the stack of free ones."""
        end = self.num_free + blocks.size
        self._free[self.num_free : end] = blocks
        self.num_free = end

    def num_sole(self, blocks: Blocks | Int32) -> int:
        """How many of these blocks have one owner."""
        return int(np.count_nonzero(self._owners_column[blocks] == 1))

    def any_shared(self, blocks: list[int]) -> bool:
        """Whether any of these blocks has several owners."""
        return any(self._owners[block] > 1 for block in blocks)

    def share(self, blocks: list[int]) -> None:
        """Add an owner to each (distinct) block, whether it is held, cached or fenced."""
        owners, fenced, idle = self._owners, self._fenced, []
        for block in blocks:
            if not owners[block]:
                if fenced and block in fenced:
                    del fenced[block]
                else:
                    idle.append(block)
            owners[block] += 1
        self.cache.take(idle)

    def release(self, blocks: list[int] | Blocks, last_step: int) -> None:
        """Take an owner from each block, once for each time it is listed.

        `last_step` is the newest step in which these owners named them. A block waits for the
        newest step of all the owners it has had, not only of the one that lets go last. Later
        blocks of a sequence are worth less than earlier ones, so they are left first.
        """
        column = np.asarray(blocks, np.intp)[::-1]
        if last_step > self._done_step:
            self._last_steps[column] = np.maximum(self._last_steps[column], last_step)
            self._newest_step = max(self._newest_step, last_step)
        self._leave(self._disown(column))

    def let_go(self, blocks: list[int]) -> None:
        """Take an owner from each of these distinct blocks, which no step of theirs names."""
        if len(blocks) > _FEW:
            self.release(blocks, 0)
            return
        owners, gone = self._owners, []
        for block in reversed(blocks):
            owners[block] -= 1
            if not owners[block]:
                gone.append(block)
        if gone:
            self._leave(np.array(gone, np.intp))

    def _leave(self, gone: Blocks) -> None:
        """Fence, cache or free blocks without an owner."""
        if self._newest_step > self._done_step or self._newest_copy > self._done_copies:
            flying = self._flying(gone)
            self._fenced.update(dict.fromkeys(gone[flying].tolist()))
            gone = gone[~flying]
        self._free_again(self.cache.leave(gone))

    def name_in_step(self, block: int, step: int) -> None:
        """Note that the plan of `step` reads a block, whoever owns it until then."""
        self._last_steps[block] = max(self._last_steps[block], step)
        self._newest_step = max(self._newest_step, step)

    def name_in_copy(self, blocks: list[int] | Blocks, step: int) -> None:
        """Note that the plan of `step` orders a swap copy to or from these blocks."""
        self._last_copies[np.asarray(blocks, np.intp)] = step
        self._newest_copy = max(self._newest_copy, step)

    def _flying(self, blocks: Blocks) -> Bools:
        """Whether a step or a copy that names the block has not answered."""
        steps = self._last_steps[blocks] > self._done_step
        flying: Bools = steps | (self._last_copies[blocks] > self._done_copies)
        return flying

    def _disown(self, blocks: Blocks) -> Blocks:
        """Count owners down; returns the blocks without an owner, each once."""
        owners = self._owners_column
        sole = owners[blocks] == 1
        if all_true(sole):
            owners[blocks] = 0
            return blocks
        gone, shared = blocks[sole], blocks[~sole].tolist()
        owners[gone] = 0
        for block in shared:  # a block may be listed twice
            self._owners[block] -= 1
        left = [block for block in dict.fromkeys(shared) if not self._owners[block]]
        return np.concatenate([gone, np.array(left, np.intp)]) if left else gone

    def step_done(self, step: int) -> None:
        """Lift the fences of every step up to `step`."""
        self._done_step = step
        if self._fenced:
            self._lift()

    def copies_done(self, step: int) -> None:
        """Lift the fences of every swap copy of the plans up to `step`."""
        self._done_copies = step
        if self._fenced:
            self._lift()

    def _lift(self) -> None:
        """Free or cache the fenced blocks that nothing in flight names any more."""
        fenced = np.array(list(self._fenced), np.intp)
        lifted = fenced[~self._flying(fenced)]
        for block in lifted.tolist():
            del self._fenced[block]
        self._free_again(self.cache.leave(lifted))

    def idle_among(self, blocks: list[int]) -> int:
        """How many of these blocks count as available now and would not once shared."""
        return self.cache.num_idle(blocks)

    def fenced_among(self, blocks: list[int]) -> int:
        """How many of these blocks are fenced, and would not be once shared."""
        return sum(1 for block in blocks if block in self._fenced) if self._fenced else 0

    def uses(self) -> UInt8:
        """The `BlockUse` of every block, uint8 [num_blocks]."""
        uses = self.cache.named() * np.uint8(BlockUse.CACHED)
        uses[list(self._fenced)] = BlockUse.FENCED
        uses[self._owners_column > 0] = BlockUse.HELD
        return uses

    def ledger(self) -> Ledger:
        """The counts as they are kept."""
        cached = self.cache.idle.size
        return Ledger(self.num_blocks, self.num_free, self.num_held, cached, len(self._fenced))

    def check(self) -> Ledger:
        """The counts, after recounting every block. Raises LedgerError if they differ."""
        kept = self.ledger()
        owners = self.owners()
        free = self._free[: self.num_free]
        cached = int32(self.cache.idle_blocks())
        fenced = int32(list(self._fenced))
        held = np.flatnonzero(owners)
        together = np.concatenate([free, cached, fenced, held])
        counted = Ledger(self.num_blocks, free.size, held.size, cached.size, fenced.size)
        if (owners < 0).any() or counted != kept:
            raise LedgerError(f"kept {kept}, counted {counted}")
        if together.size != self.num_blocks or len(set(together.tolist())) != self.num_blocks:
            raise LedgerError(f"a block is in two uses or none: {counted}")
        return kept

    def owners(self) -> Int32:
        """Owner counts, int32 [num_blocks]; a copy."""
        return self._owners_column.copy()

    def idle_state(self) -> tuple[Int32, Int32, bytes]:
        """(free list, cached blocks longest idle first, their digests) of an unused pool."""
        cached = self.cache.idle_blocks()
        digests = b"".join(self.cache.digest(block) for block in cached)
        return int32(self._free[: self.num_free]), int32(cached), digests

    def restore_idle(self, free: Int32, cached: Int32, digests: bytes) -> None:
        """Put a new pool into the state that `idle_state` returned. Raises LedgerError if it is no
        such state.
        """
        self.num_free = 0
        self._free_again(free.astype(np.intp))
        self.cache.register(split_hashes(digests), cached.tolist())
        self.cache.leave(cached.astype(np.intp))
        self.check()
