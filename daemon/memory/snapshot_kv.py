"""The KV memory of an instance some of whose layers keep states, with snapshots of them.

It makes a snapshot (`daemon.memory.snapshots`) behind chunks of a prompt that end at a border, and
behind each block that is decoded. Its copy is part of the next plan, which comes before the states
go on; so is the copy with which a sequence begins from a snapshot.
"""

from collections.abc import Sequence as Listing

import numpy as np

from daemon.memory.kv_cache import Match
from daemon.memory.layered_kv import LayeredKV
from daemon.memory.snapshots import MOST_SHARE, Snapshots
from daemon.state.sequence import Sequence
from daemon.wire.columns import Int32, Slots

HEADER_TOKENS = 8
"""The end of a prompt that the next turn of a chat may lack: the header of the answer to come, with
marks of thoughts, takes 3 to 7 tokens in the templates of models that keep states."""


class SnapshotKV(LayeredKV):
    """As `LayeredKV`, where prefixes are cached with snapshots of their states."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_slots: int,
        max_len: int,
        windows: tuple[int, ...],
        max_chunk: int,
        kinds: tuple[str, ...],
        num_states: int,
    ) -> None:
        """As `LayeredKV`."""
        parts = windows, max_chunk, kinds, num_states
        super().__init__(num_blocks, block_size, max_slots, max_len, True, *parts)
        share = MOST_SHARE if windows else 1.0
        self.snapshots = Snapshots(self.pool, num_states, block_size, share, bool(windows))

    # Prefixes

    def cached(self, hashes: Listing[bytes], num_tokens: int) -> Match:
        """As `LayeredKV.cached`, of prefixes that have a snapshot."""
        digests, snapshots = hashes[: (num_tokens - 1) // self.block_size], self.snapshots
        most = self._num_whole(digests)
        num_seen = most if self.holds_tokens else snapshots.num_seen(digests)
        most = snapshots.longest(digests, most)
        while most and (reach := self._with_windows(digests, most)) < most:
            most = snapshots.longest(digests, reach)
        if not most:
            return Match([], 0, num_seen=num_seen)
        states = snapshots.pages_of(digests[most - 1])
        return self._match(digests, most)._replace(states=states, num_seen=num_seen)

    def seal(self, sequence: Sequence, num_computed: int) -> None:
        """As `KVCache.seal`, and name the snapshot that waits for its hash."""
        before, hashes = sequence.num_sealed_blocks, sequence.hashes
        super().seal(sequence, num_computed)
        if not self.holds_tokens:
            self.snapshots.saw(hashes[before : sequence.num_sealed_blocks])
        self.snapshots.name_of_answer(sequence.slot)

    # Sequences begin

    def allocate(self, slot: int, matched: Match, num_tokens: int, num_shared: int = 0) -> None:
        """As `LayeredKV.allocate`; the states are those of the snapshot that `read_states` kept."""
        super().allocate(slot, matched, num_tokens, num_shared)
        self._copy_each(self.snapshots.read_for(slot), self._pages_of_states(slot))

    def read_states(self, slot: int, hashes: Listing[bytes], num_blocks: int) -> None:
        """As `KVCache.read_states`."""
        self.snapshots.read(slot, hashes[num_blocks - 1], num_blocks * self.block_size)

    def begin_states(self, slot: int, sequence: Sequence, start: int, num_seen: int) -> None:
        """As `KVCache.begin_states`."""
        last = (sequence.num_known_tokens - HEADER_TOKENS) // self.block_size
        places = last * self.block_size, num_seen * self.block_size
        self.snapshots.begin(slot, start, sequence.hashes, *places)

    def state_status(self) -> tuple[int, int, int, int]:
        """As `KVCache.state_status`."""
        counts = self.snapshots.num_made, self.snapshots.num_hits, self.snapshots.num_hit_tokens
        return len(self.snapshots), *counts

    # They go on

    def until_border(self, slot: int, start: int, count: int) -> int:
        """As `KVCache.until_border`."""
        return self.snapshots.until_border(slot, start, count)

    def keep_states(self, slot: int, num_computed: int) -> None:
        """As `KVCache.keep_states`."""
        targets = self.snapshots.take(slot, num_computed, self._room)
        self._copy_each(self._pages_of_states(slot), targets)

    def append_each(self, slots: Slots) -> None:
        """As `KVCache.append_each`, with a snapshot behind the blocks before: they are computed."""
        super().append_each(slots)
        for slot in slots.tolist():
            num_tokens = (self.table.held.item(slot) - 1) * self.block_size
            targets = self.snapshots.take_of_answer(slot, num_tokens, self._room)
            self._copy_each(self._pages_of_states(slot), targets)

    @property
    def _room(self) -> int:
        """Pages that no running sequence needs for its next block."""
        growing = int(np.count_nonzero(self.charged)) * self._num_full
        return self.num_unreserved - max(self.num_spare, growing)

    def take_copies(self) -> tuple[Int32, Int32]:
        """(sources, targets) of block copies for the next step."""
        copies = super().take_copies()
        self.snapshots.planned(self.newest_step)
        return copies

    # They leave

    def release(self, slots: list[int], last_step: int) -> None:
        """As `KVCache.release`."""
        self._leave_snapshots(slots)
        super().release(slots, last_step)

    def hand_over(self, slot: int, num_tokens: int) -> list[int]:
        """As `KVCache.hand_over`."""
        self._leave_snapshots([slot])
        return super().hand_over(slot, num_tokens)

    def _leave_snapshots(self, slots: list[int]) -> None:
        gone = [page for slot in slots for page in self.snapshots.leave(slot)]
        self._forget_copies(set(gone))

    def forget(self, sequence: Sequence) -> None:
        """As `KVCache.forget`, and its snapshots."""
        self._forget_copies(set(self.snapshots.forget(sequence.slot)))
        super().forget(sequence)
