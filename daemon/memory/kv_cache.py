"""The KV memory of one instance: its block pool, block table, reservations, loans, prefix cache."""

from collections.abc import Sequence as Listing
from typing import NamedTuple

import numpy as np

from daemon.memory.block_pool import BlockPool
from daemon.memory.block_table import BlockTable
from daemon.memory.lending import Lending
from daemon.memory.reservations import Reservations
from daemon.state.sequence import Sequence
from daemon.wire.columns import Int32, Slots, UInt8, int32

_NONE = int32()


class Match(NamedTuple):
    """A sequence's prefix as the cache has it: `blocks` to share, with its first `num_blocks`."""

    blocks: list[int]
    num_blocks: int
    recent: tuple[int, ...] = ()  # pages of layers with windows, to be taken or copied
    states: tuple[int, ...] = ()  # pages of a snapshot of states, to be copied
    num_seen: int = 0  # its blocks that were computed before, with a snapshot of states or without


NOTHING_CACHED = Match([], 0)


class PageKind(NamedTuple):
    """Groups of layers whose pages a sequence holds alike."""

    name: str  # as `LayerGroup.kind`
    window: int  # tokens; 0: all
    num_groups: int


class PageKinds(NamedTuple):
    """The kinds of an instance's pages, and which each page is of."""

    kinds: tuple[PageKind, ...]
    of_pages: UInt8  # [num_blocks]: index of a page's kind; of a free one, that of its last use


class KVCache:
    """Allocates blocks to slots and takes them back. It only plans: it never calls the engine."""

    def __init__(
        self, num_blocks: int, block_size: int, max_slots: int, max_len: int, prefix_cache: bool
    ) -> None:
        self.block_size = block_size
        self.has_windows = False  # of layers, so that sequences hold some of their blocks alone
        self.has_states = False  # of recurrent layers, which cannot be cut back to fewer tokens
        self.holds_tokens = True  # pages of layers with attention; else all are of states
        self.num_groups = 1  # of layers: pages that a block of all layers takes
        self.capacity_tokens = num_blocks * block_size  # the longest sequence that fits
        self.pool_tokens = num_blocks * block_size  # of sequences that hold all of their tokens
        self.newest_step = 0  # of all plans
        self.num_spare = max(1, num_blocks // 100)  # kept to grow into, where none are reserved
        self.pool = BlockPool(num_blocks)
        self.table = BlockTable(max_slots, -(-max_len // block_size))
        self.charged = self.table.held  # [slot] blocks that count against reservations
        self.reservations = Reservations(self.charged)
        self.lending = Lending(self.reservations)
        self.caches_prefixes = prefix_cache
        self._copy_sources: list[int] = []
        self._copy_targets: list[int] = []

    def blocks_for(self, num_tokens: int) -> int:
        """The number of blocks that hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def blocks_of(self, num_tokens: Int32) -> Int32:
        """The same of several sequences; int32 [N]."""
        blocks: Int32 = -(-num_tokens // self.block_size)
        return blocks

    def pool_share(self, num_tokens: float, num_sequences: float) -> float:
        """The share of the pool that so many sequences take, which have `num_tokens` together; at
        most, where layers have windows: the less a sequence takes of them, the longer it is.
        """
        return num_tokens / max(1, self.pool_tokens)

    def blocks_each(self, num_tokens: float) -> float:
        """The blocks that each `block_size` tokens of a sequence of `num_tokens` take."""
        return 1.0

    def pool_tokens_at(self, length: float) -> int:
        """The tokens of sequences of this length that the pool holds."""
        return int(self.pool.num_blocks * self.block_size / self.blocks_each(length))

    def has_room(self, num_tokens: int, num_cached: int, num_pending: int, num_others: int) -> bool:
        """Whether the free blocks hold a sequence of `num_tokens`, of which so many are cached,
        beside others that wait, with so many pending tokens together; cached blocks are free ones.
        """
        return num_tokens - num_cached + num_pending <= self.num_unreserved * self.block_size

    def blocks_to_begin(self, num_tokens: int) -> int:
        """The most blocks that a sequence of `num_tokens` holds while they are computed."""
        return -(-num_tokens // self.block_size)

    def blocks_to_share(self, num_tokens: int) -> int:
        """The blocks of a leader's first `num_tokens` that a follower shares."""
        return num_tokens // self.block_size

    def blocks_to_move(self, slot: int, num_tokens: int) -> list[int]:
        """The blocks with a slot's first `num_tokens`, in order."""
        count = -(-num_tokens // self.block_size)
        return self.table.blocks(slot)[:count].tolist()  # type: ignore[no-any-return]

    def num_to_move(self, num_tokens: int) -> int:
        """The number of blocks that move with `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def tokens_of_moved(self, num_blocks: int, num_tokens: int) -> int:
        """Tokens that one may go on behind with the first of the blocks moved with `num_tokens`."""
        return min(num_tokens, num_blocks * self.block_size)

    def num_lasting(self, num_tokens: int) -> int:
        """The number of the first blocks to move with `num_tokens` that no later token changes."""
        return num_tokens // self.block_size

    def lasting(self, slot: int, first: int, count: int) -> list[int]:
        """`count` of these blocks of a slot, from number `first` on."""
        blocks: list[int] = self.table.blocks(slot)[first : first + count].tolist()
        return blocks

    def names_of(self, digests: Listing[bytes]) -> Listing[bytes]:
        """The names of these blocks, by the digests of the blocks of tokens."""
        return digests

    def cached_to_move(self, hashes: Listing[bytes], num_known: int, num_parked: int) -> list[int]:
        """The cached blocks at the start of those to move with `num_parked` tokens of a sequence
        of `num_known`; more where more of it is cached.
        """
        return self.cached(hashes, num_known).blocks

    def match(self, sequence: Sequence) -> Match:
        """The cached blocks of a sequence's prefix, which leave at least one token to compute."""
        return self.cached(sequence.hashes, sequence.num_known_tokens)

    def cached(self, hashes: Listing[bytes], num_tokens: int) -> Match:
        """The same of `num_tokens` with these hashes."""
        if not self.caches_prefixes:
            return NOTHING_CACHED
        blocks = self.pool.cache.match(hashes[: (num_tokens - 1) // self.block_size])
        return Match(blocks, len(blocks))

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

    def allocate(self, slot: int, matched: Match, num_tokens: int, num_shared: int = 0) -> None:
        """Give a slot its cached prefix, and new blocks for the rest of its `num_tokens`, of which
        the first `num_shared` are computed.
        """
        blocks = matched.blocks
        if blocks:
            self.pool.share(blocks)
        num_blocks = -(-num_tokens // self.block_size)
        self.table.extend(slot, blocks + self.pool.allocate(num_blocks - len(blocks)))

    def state_status(self) -> tuple[int, int, int, int]:
        """Snapshots of states that are there; ever made; sequences that began from one; tokens
        that these did not compute.
        """
        return 0, 0, 0, 0

    def read_states(self, slot: int, hashes: Listing[bytes], num_blocks: int) -> None:
        """Have a slot begin from the snapshot behind so many blocks, once it has its pages."""

    def begin_states(self, slot: int, sequence: Sequence, start: int, num_seen: int) -> None:
        """Note behind which tokens of a sequence that got a slot snapshots of its states are to be
        made; `start` of them are computed, and its first `num_seen` blocks were computed before.
        """

    def until_border(self, slot: int, start: int, count: int) -> int:
        """The tokens of a chunk of `count` from `start` on, up to where a snapshot is due."""
        return count

    def keep_states(self, slot: int, num_computed: int) -> None:
        """Make a snapshot behind the chunk that the newest plan computes, where one is due."""

    def adopt(self, slot: int, moved: list[int], num_tokens: int, num_known: int) -> None:
        """Give a slot the blocks that `blocks_to_move` gave for `num_tokens`, and new ones for the
        rest of its `num_known`.
        """
        self.allocate(slot, Match(moved, len(moved)), num_known, num_tokens)

    def num_adopted(self, moved: list[int], num_tokens: int) -> int:
        """How many of the moved blocks a slot takes over that adopts them; it copies the others."""
        return len(moved)

    def can_fork(self, source: int, num_tokens: int) -> bool:
        """Whether a slot still has all of its first `num_tokens` that others would read."""
        return True

    def fork(self, source: int, slot: int, num_tokens: int, num_known: int) -> None:
        """Give a slot the first `num_tokens` of another one, and blocks for its `num_known`; the
        block in which the first end is copied.

        The copy comes at once because the new owner writes to that block in its first step.
        """
        whole, num_blocks = num_tokens // self.block_size, -(-num_known // self.block_size)
        shared = self.table.blocks(source)[:whole].tolist()
        self.pool.share(shared)
        own = self.pool.allocate(num_blocks - whole)
        if num_tokens % self.block_size:
            self._copy_sources.append(int(self.table.blocks(source)[whole]))
            self._copy_targets.append(own[0])
        self.table.extend(slot, shared + own)

    def needing_block(self, slots: Slots, computed: Int32) -> Slots:
        """The slots whose computed tokens fill their blocks; `computed` is a column of all slots,
        as to compare whole columns is quicker than to gather them.
        """
        full = computed >= self.table.held * self.block_size
        return slots[full[slots]]

    def page_kinds(self) -> PageKinds | None:
        """The kinds of pages; None: a page has all layers."""
        return None

    def num_to_append(self, slot: int) -> int:
        """The blocks of the pool that a further one of a slot takes."""
        return 1

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
            self.table.extend_each(slots, self.pool.allocate_column(slots.size))
            self.reservations.took(slots)

    def compute(self, slot: int, start: int, last: bool, step: int) -> None:
        """Have a slot hold what `step` reads and writes, which computes a chunk of its prompt from
        `start` on, perhaps the last one.
        """

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
        self.pool.cache.unname(self.table.blocks(sequence.slot).tolist())
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

    def hand_over(self, slot: int, num_tokens: int) -> list[int]:
        """Take back a slot whose blocks no step in flight names, but for those of its first
        `num_tokens`, which the caller owns from now on; returns these.
        """
        num_blocks = -(-num_tokens // self.block_size)
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
