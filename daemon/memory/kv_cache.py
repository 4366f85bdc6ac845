"""The KV memory of one instance: its block pool, block table, reservations, loans, prefix cache."""

import numpy as np

from daemon.memory.block_pool import BlockPool
from daemon.memory.block_table import BlockTable
from daemon.memory.lending import Lending
from daemon.memory.reservations import Reservations
from daemon.state.sequence import Sequence
from daemon.wire.columns import Int32, Slots, int32

_NONE = int32()


class KVCache:
    """Allocates blocks to slots and takes them back. It only plans: it never calls the engine."""

    def __init__(
        self, num_blocks: int, block_size: int, max_slots: int, max_len: int, prefix_cache: bool
    ) -> None:
        self.block_size = block_size
        self.capacity_tokens = num_blocks * block_size  # of the whole pool
        self.num_spare = max(1, num_blocks // 100)  # kept to grow into, where none are reserved
        self.pool = BlockPool(num_blocks)
        self.table = BlockTable(max_slots, -(-max_len // block_size))
        self.reservations = Reservations(self.table.held)
        self.lending = Lending(self.reservations)
        self.caches_prefixes = prefix_cache
        self._copy_sources: list[int] = []
        self._copy_targets: list[int] = []

    def blocks_for(self, num_tokens: int) -> int:
        """The number of blocks that hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[int]:
        """The cached blocks of a sequence's prefix, which leave at least one token to compute."""
        if not self.caches_prefixes:
            return []
        useful = (sequence.num_known_tokens - 1) // self.block_size
        return self.pool.cache.match(sequence.hashes[:useful])

    @property
    def num_unreserved(self) -> int:
        """Available blocks that are neither reserved nor owed."""
        lending, free = self.lending, self.pool.num_available - self.reservations.num_unheld
        return free - lending.num_owed if lending.owed else free

    def num_lacking(self, matched: list[int], num_new_blocks: int) -> int:
        """How many of these new blocks are not available, or reserved for others, once `matched`
        are shared; <= 0: none.
        """
        idle = self.pool.idle_among(matched) if matched else 0
        return num_new_blocks - (self.num_unreserved - idle)

    def allocate(self, slot: int, matched: list[int], num_blocks: int) -> None:
        """Give a slot its cached prefix and new blocks, `num_blocks` in all."""
        if matched:
            self.pool.share(matched)
        self.table.extend(slot, matched + self.pool.allocate(num_blocks - len(matched)))

    def fork(self, source: int, slot: int, num_tokens: int, num_blocks: int) -> None:
        """Give a slot the first `num_tokens` of another one; the block in which they end is copied.

        The copy comes at once because the new owner writes to that block in its first step.
        """
        whole = num_tokens // self.block_size
        shared = self.table.blocks(source)[:whole].tolist()
        self.pool.share(shared)
        own = self.pool.allocate(num_blocks - whole)
        if num_tokens % self.block_size:
            self._copy_sources.append(int(self.table.blocks(source)[whole]))
            self._copy_targets.append(own[0])
        self.table.extend(slot, shared + own)

    def needing_block(self, slots: Slots, computed: Int32) -> Slots:
        """The slots whose `computed` tokens fill their blocks."""
        return slots[computed >= self.table.held[slots] * self.block_size]

    def can_append(self, slots: Slots) -> bool:
        """Whether each of these slots can have a block that is not reserved for another one."""
        num_unreserved = self.num_unreserved
        if slots.size <= num_unreserved:
            return True
        # Owed blocks may still be on their way; reserved ones are available.
        return slots.size - self.reservations.count_among(slots) <= max(0, num_unreserved)

    def append_each(self, slots: Slots) -> None:
        """Append a block to each of several distinct slots."""
        if slots.size:
            self.table.extend_each(slots, int32(self.pool.allocate(slots.size)))
            self.reservations.took(slots)

    def seal(self, sequence: Sequence, num_computed: int) -> None:
        """Name the full blocks that are computed and whose hashes are known."""
        sealed, hashes = sequence.num_sealed_blocks, sequence.hashes
        full = num_computed // self.block_size
        if full > len(hashes):
            full = len(hashes)
        if full <= sealed or not self.caches_prefixes:
            return
        blocks = self.table.blocks(sequence.slot)[sealed:full].tolist()
        self.pool.cache.register(hashes[sealed:full], blocks)
        sequence.num_sealed_blocks = full

    def forget(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks out of the prefix cache, now and when it leaves."""
        self.pool.cache.forget(self.table.blocks(sequence.slot).tolist())
        sequence.hashes = []

    def num_own(self, slot: int) -> int:
        """The number of a slot's blocks that have no other owner."""
        return self.pool.num_sole(self.table.blocks(slot))

    def release(self, slots: list[int], last_step: int) -> None:
        """Take back every block of several slots, none of them named after `last_step`."""
        rows = [self.table.blocks(slot) for slot in slots]
        blocks = np.concatenate(rows) if len(rows) > 1 else rows[0]
        if self._copy_targets:
            self._forget_copies(set(blocks.tolist()))
        self.pool.release(blocks, last_step)
        self.lending.release(slots)
        self.reservations.release(slots)  # counts by what they hold, so before that is gone
        self.table.clear(slots)

    def hand_over(self, slot: int, num_blocks: int) -> list[int]:
        """Take back a slot whose blocks no step in flight names, but for its first `num_blocks`,
        which the caller owns from now on; returns these.
        """
        blocks: list[int] = self.table.blocks(slot).tolist()
        self.pool.let_go(blocks[num_blocks:])
        self.give_up_reservation(slot)
        self.table.clear([slot])
        return blocks[:num_blocks]

    def give_up_reservation(self, slot: int) -> None:
        """Give up the reservation of a slot, which borrows nothing; it keeps what it holds."""
        self.lending.release([slot])
        self.reservations.release([slot])

    def clear_reservations(self) -> None:
        """Give up all reservations, and the loans of what was reserved."""
        self.lending.clear()
        self.reservations.clear()

    def num_written(self, slots: Slots, computed: Int32) -> int:
        """Tokens whose KV is written or planned to be, in held blocks. `slots` are all in use, with
        `computed` tokens each. Shared blocks are full, and count once.
        """
        unwritten = int(np.add.reduce(self.table.held[slots] * self.block_size - computed))
        return self.pool.num_held * self.block_size - unwritten

    def _forget_copies(self, targets: set[int]) -> None:
        """Order no copies to these blocks any more: their new owner is gone."""
        pairs = zip(self._copy_sources, self._copy_targets, strict=True)
        kept = [pair for pair in pairs if pair[1] not in targets]
        self._copy_sources, self._copy_targets = ([pair[end] for pair in kept] for end in (0, 1))

    @property
    def has_copies(self) -> bool:
        """Whether the next step has blocks to copy."""
        return bool(self._copy_targets)

    def take_copies(self) -> tuple[Int32, Int32]:
        """(sources, targets) of block copies for the next step."""
        if not self._copy_sources:
            return _NONE, _NONE
        copies = int32(self._copy_sources), int32(self._copy_targets)
        self._copy_sources.clear()
        self._copy_targets.clear()
        return copies
