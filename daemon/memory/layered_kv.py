"""The KV memory of an instance some of whose layers have windows, or keep states.

A page is a block of tokens of one group of layers (`daemon.memory.layout`); all come from one pool.
The cell of a block table is group x blocks of the longest sequence + block. Groups of full layers
hold a sequence's blocks from the first on. Groups with a window hold a *span* of them: the blocks
behind it are not needed, and their pages are taken for new ones, or go back to the pool.

What a sequence holds of windows is its own: a cached page that has an owner is copied. So a span
moves on without asking for pages, and a step that was planned can be computed. It is longer while
a prompt is computed, by a step's largest chunk.

The pages of a sequence's states are its own from its first token to its end, and stand behind those
of all groups in its row, as if they were the first blocks of one more. They hold what follows from
all tokens computed, never from fewer: so nothing is cut back to an earlier token, or forked.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listing
from math import ceil
from typing import NamedTuple

import numpy as np

from daemon.memory.block_table import BlockTable
from daemon.memory.kv_cache import NOTHING_CACHED, KVCache, Match, PageKind, PageKinds
from daemon.memory.layout import STATE, held_blocks, kind_of, most_tokens, row_blocks
from daemon.memory.lending import Lending
from daemon.memory.reservations import Reservations
from daemon.state.sequence import Sequence
from daemon.wire.columns import Blocks, Int32, Slots, int32


class _Window(NamedTuple):
    """The groups of one window, and the spans of all slots in them: blocks `first` to `end`."""

    tokens: int
    groups: tuple[int, ...]
    most: int  # blocks of a span between prompts
    most_in_prompts: int
    first: Int32  # [slot]
    end: Int32  # [slot]

    def needed(self, num_tokens: int, block_size: int) -> int:
        """The first block that the query behind `num_tokens` sees."""
        return max(0, num_tokens + 1 - self.tokens) // block_size


class _Table(BlockTable):
    """A block table whose rows have a part for each group, of which some cells are passed."""

    def __init__(
        self, max_slots: int, max_blocks: int, cells_of: Callable[[int], list[int]]
    ) -> None:
        super().__init__(max_slots, max_blocks)
        self._cells_of = cells_of

    def blocks(self, slot: int) -> Blocks:
        """All pages of a slot, in no order that means anything; a copy."""
        return self.at(slot, self._cells_of(slot))


class LayeredKV(KVCache):
    """Allocates pages of several groups of layers to slots, and takes them back."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_slots: int,
        max_len: int,
        prefix_cache: bool,
        windows: tuple[int, ...],
        max_chunk: int,
        kinds: tuple[str, ...] = (),
        num_states: int = 0,
    ) -> None:
        """`windows` of each group, those of full layers (0) first; `max_chunk`: most tokens of one
        sequence in a step; `kinds` of each group, by its window where not named; `num_states`:
        pages of a sequence's states.
        """
        self._max_blocks = row_blocks(max_len, block_size)
        super().__init__(
            num_blocks=num_blocks,
            block_size=block_size,
            max_slots=max_slots,
            max_len=max_len,
            prefix_cache=prefix_cache,
        )
        self.has_windows, self.num_groups = True, max(1, len(windows))
        self.has_states, self.holds_tokens = num_states > 0, bool(windows)
        self._num_states, self._states = num_states, len(windows)  # pages, and number of "group"
        # A block of one is its pages of all groups; states do not grow.
        self.num_spare = max(self.num_spare, self.num_groups) if windows else 0
        self._num_full = windows.count(0)
        self._windows = tuple(
            _Window(
                tokens=window,
                groups=tuple(group for group, other in enumerate(windows) if other == window),
                most=held_blocks(self._max_blocks, window, block_size),
                most_in_prompts=held_blocks(self._max_blocks, window, block_size, max_chunk),
                first=np.zeros(max_slots, np.int32),
                end=np.zeros(max_slots, np.int32),
            )
            for window in sorted({*windows} - {0})
        )
        num_cells = self._max_blocks * len(windows) + num_states
        self.table = _Table(max_slots, num_cells, self._cells_of)
        self._kinds = tuple(zip(kinds or map(kind_of, windows), windows, strict=True))
        if num_states:
            self._kinds += ((STATE, 0),)
        self._groups = bytearray(num_blocks)  # which group each page was last given to
        self.charged = np.zeros(max_slots, np.int32)
        self.reservations = Reservations(self.charged)
        self.lending = Lending(self.reservations)
        self.pool_tokens = max(0, num_blocks - num_states) * block_size // self.num_groups
        if not windows:
            self.pool_tokens = num_blocks // max(1, num_states) * max_len
        most = num_blocks - num_states, max_len, windows, block_size, max_chunk
        self.capacity_tokens = most_tokens(*most)

    # Counts of pages

    def blocks_for(self, num_tokens: int) -> int:
        """The number of pages that a sequence of `num_tokens` holds between prompts."""
        blocks = -(-num_tokens // self.block_size)
        states = self._num_states if blocks else 0
        return (
            states
            + self._num_full * blocks
            + sum(len(window.groups) * min(blocks, window.most) for window in self._windows)
        )

    def blocks_of(self, num_tokens: Int32) -> Int32:
        """The same of several sequences; int32 [N]."""
        blocks = -(-num_tokens // self.block_size)
        pages: Int32 = self._num_full * blocks + self._num_states
        for window in self._windows:
            pages = pages + len(window.groups) * np.minimum(blocks, window.most)
        return pages.astype(np.int32)

    def pool_share(self, num_tokens: float, num_sequences: float) -> float:
        """As `KVCache.pool_share`, as if all were as long as they are on average."""
        if num_sequences <= 0:
            return 0.0
        pages = num_sequences * self.blocks_for(ceil(num_tokens / num_sequences))
        return pages / max(1, self.pool.num_blocks)

    def blocks_each(self, num_tokens: float) -> float:
        """As `KVCache.blocks_each`: the fewer, the longer the sequence is beside its windows."""
        num_tokens = max(1, ceil(num_tokens))
        return self.blocks_for(num_tokens) / -(-num_tokens // self.block_size)

    def has_room(self, num_tokens: int, num_cached: int, num_pending: int, num_others: int) -> bool:
        """As `KVCache.has_room`, as if all that wait were as long as they are on average."""
        pages = self.blocks_to_begin(num_tokens) - self.blocks_to_share(num_cached)
        if num_others:
            pages += num_others * self.blocks_for(-(-num_pending // num_others))
        return pages <= self.num_unreserved

    def blocks_to_begin(self, num_tokens: int) -> int:
        """The most pages that a sequence of `num_tokens` holds while they are computed."""
        blocks = -(-num_tokens // self.block_size)
        return (
            self._num_states
            + self._num_full * blocks
            + sum(
                len(window.groups) * min(blocks, window.most_in_prompts) for window in self._windows
            )
        )

    def blocks_to_share(self, num_tokens: int) -> int:
        """The pages of a leader's first `num_tokens` that a follower shares."""
        return self._num_full * (num_tokens // self.block_size)

    def _charge(self, slot: int) -> None:
        """Charge a slot what it holds, but for what it will give back behind its prompt. One that
        came with the last window alone holds less of it than others of its length.
        """
        pages = self._num_states + self._num_full * self.table.held.item(slot)
        self.charged[slot] = pages + sum(
            len(window.groups) * min(window.end.item(slot) - window.first.item(slot), window.most)
            for window in self._windows
        )

    def page_kinds(self) -> PageKinds:
        """As `KVCache.page_kinds`, in the order of the groups."""
        kinds = list(dict.fromkeys(self._kinds))
        of_groups = np.array([kinds.index(kind) for kind in self._kinds], np.uint8)
        counted = tuple(PageKind(*kind, self._kinds.count(kind)) for kind in kinds)
        return PageKinds(counted, of_groups[np.frombuffer(self._groups, np.uint8)])

    # Cells

    def _row(self, group: int, first: int, end: int) -> range:
        start = group * self._max_blocks
        return range(start + first, start + end)

    def _cells_of(self, slot: int) -> list[int]:
        """The cells of a slot that have pages."""
        cells: list[int] = []
        for group in range(self._num_full):
            cells += self._row(group, 0, self.table.held.item(slot))
        for window in self._windows:
            for group in window.groups:
                cells += self._row(group, window.first.item(slot), window.end.item(slot))
        if self.table.held.item(slot):
            cells += self._row(self._states, 0, self._num_states)
        return cells

    def blocks_to_move(self, slot: int, num_tokens: int) -> list[int]:
        """The pages with a slot's first `num_tokens` that going on from there reads; empty where
        some have been taken for later tokens. States are those behind all computed tokens.

        All instances share their order: those of full layers, block by block, which stay as they
        are; states; those of windows; those with the last token, one of each group.
        """
        if not num_tokens:
            return []
        last = (num_tokens - 1) // self.block_size
        for window in self._windows:
            first = window.needed(num_tokens, self.block_size)
            if not window.first.item(slot) <= first <= last < window.end.item(slot):
                return []
        return self._pages(slot, self._moved(num_tokens))

    def _moved(self, num_tokens: int) -> list[tuple[int, int]]:
        """The pages to move with `num_tokens`: groups and blocks."""
        spans, last = self._spans(num_tokens), (num_tokens - 1) // self.block_size
        cells = self._lasting(0, max(0, last))
        cells += [(self._states, page) for page in range(self._num_states)]
        for group, first in spans[self._num_full :]:
            cells += [(group, block) for block in range(first, last)]
        return cells + [(group, last) for group, _ in spans]

    def _lasting(self, first: int, end: int) -> list[tuple[int, int]]:
        """The pages of full layers with blocks `first` to `end`: groups and blocks."""
        return [(group, block) for block in range(first, end) for group in range(self._num_full)]

    def _pages(self, slot: int, cells: list[tuple[int, int]]) -> list[int]:
        columns = [group * self._max_blocks + block for group, block in cells]
        pages: list[int] = self.table.at(slot, columns).tolist()
        return pages

    def num_to_move(self, num_tokens: int) -> int:
        """As `KVCache.num_to_move`."""
        return len(self._moved(num_tokens)) if num_tokens else 0

    def tokens_of_moved(self, num_blocks: int, num_tokens: int) -> int:
        """As `KVCache.tokens_of_moved`: one goes on behind all of them alone."""
        return num_tokens if num_blocks == self.num_to_move(num_tokens) else 0

    def num_lasting(self, num_tokens: int) -> int:
        """As `KVCache.num_lasting`: of full layers, but for the block with the last token."""
        return self._num_full * (max(0, num_tokens - 1) // self.block_size)

    def lasting(self, slot: int, first: int, count: int) -> list[int]:
        """As `KVCache.lasting`."""
        if not count:
            return []
        cells = self._lasting(first // self._num_full, -(-(first + count) // self._num_full))
        skipped = first % self._num_full
        return self._pages(slot, cells[skipped : skipped + count])

    def names_of(self, digests: Listing[bytes]) -> list[bytes]:
        """As `KVCache.names_of`: of the pages of full layers."""
        return [_name(digest, group) for digest in digests for group in range(self._num_full)]

    def cached_to_move(self, hashes: Listing[bytes], num_known: int, num_parked: int) -> list[int]:
        """As `KVCache.cached_to_move`: pages of full layers alone."""
        if not self.caches_prefixes:
            return []
        last = (num_parked - 1) // self.block_size
        return self.pool.cache.match(self.names_of(hashes[:last]))

    # Prefixes

    def cached(self, hashes: Listing[bytes], num_tokens: int) -> Match:
        """The cached pages of a prefix of `num_tokens` with these hashes: the longest of which all
        pages of full layers are known, and those of windows as far as its next token reads them.
        """
        if not self.caches_prefixes or self.has_states:
            return NOTHING_CACHED
        digests = hashes[: (num_tokens - 1) // self.block_size]
        most = self._with_windows(digests, self._num_whole(digests))
        return self._match(digests, most) if most else NOTHING_CACHED

    def _num_whole(self, digests: Listing[bytes]) -> int:
        """The first blocks of these of which full layers have all pages cached."""
        find, most = self.pool.cache.find, len(digests)
        for group in range(self._num_full):
            lacks = (find(_name(digest, group)) < 0 for digest in digests[:most])
            most = next((block for block, lack in enumerate(lacks) if lack), most)
        return most

    def _with_windows(self, digests: Listing[bytes], most: int) -> int:
        """The longest prefix of at most so many blocks behind which windows are cached."""
        while most:
            lacking = self._last_lacking(digests, most)
            if lacking < 0:
                break
            most = lacking
        return most

    def _match(self, digests: Listing[bytes], most: int) -> Match:
        find = self.pool.cache.find
        whole = [
            find(_name(digest, group))
            for group in range(self._num_full)
            for digest in digests[:most]
        ]
        recent = tuple(
            find(_name(digest, group))
            for window in self._windows
            for group in window.groups
            for digest in digests[window.needed(most * self.block_size, self.block_size) : most]
        )
        return Match(whole, most, recent)

    def _last_lacking(self, digests: Listing[bytes], num_blocks: int) -> int:
        """The last block that windows would read behind `num_blocks`, and that is not cached; -1:
        none.
        """
        find, last = self.pool.cache.find, -1
        for window in self._windows:
            first = window.needed(num_blocks * self.block_size, self.block_size)
            for block in range(num_blocks - 1, max(first, last + 1) - 1, -1):
                if any(find(_name(digests[block], group)) < 0 for group in window.groups):
                    last = block
                    break
        return last

    def seal(self, sequence: Sequence, num_computed: int) -> None:
        """Name the full pages that are computed, held, and whose hashes are known."""
        sealed, hashes = sequence.num_sealed_blocks, sequence.hashes
        full = min(num_computed // self.block_size, len(hashes))
        if full <= sealed or not self.caches_prefixes:
            return
        slot = sequence.slot
        for group in range(self._num_full):
            self._name(slot, group, hashes, sealed, full)
        for window in self._windows:
            first = max(sealed, window.first.item(slot))
            for group in window.groups:
                self._name(slot, group, hashes, first, min(full, window.end.item(slot)))
        sequence.num_sealed_blocks = full

    def _name(self, slot: int, group: int, hashes: list[bytes], first: int, end: int) -> None:
        pages = self.table.at(slot, list(self._row(group, first, end))).tolist()
        self.pool.cache.register([_name(digest, group) for digest in hashes[first:end]], pages)

    # Slots take pages

    def allocate(self, slot: int, matched: Match, num_tokens: int, num_shared: int = 0) -> None:
        """Give a slot its cached prefix, and new pages for the rest of its `num_tokens`, of which
        the first `num_shared` are computed.
        """
        most, spans = matched.num_blocks, self._spans(num_shared)
        cells = [(group, block) for group in range(self._num_full) for block in range(most)]
        given = dict(zip(cells, matched.blocks, strict=True))
        copied: list[tuple[int, int, int]] = []  # page, and the cell of its copy
        if matched.recent:
            cells = [
                (group, block)
                for group, first in spans[self._num_full :]
                for block in range(first, most)
            ]
            for cell, page in zip(cells, matched.recent, strict=True):
                if page in self.pool.cache.idle:
                    given[cell] = page
                else:
                    copied.append((page, *cell))
        self._take(slot, given, num_tokens, spans)
        for page, group, block in copied:
            (target,) = self.table.at(slot, list(self._row(group, block, block + 1))).tolist()
            self._copy(page, target)

    def num_adopted(self, moved: list[int], num_tokens: int) -> int:
        """As `KVCache.num_adopted`: states change with each step, and a transfer may read them."""
        first = self.num_lasting(num_tokens)
        states = moved[first : first + self._num_states]
        return len(moved) - (len(states) if self.pool.any_shared(states) else 0)

    def adopt(self, slot: int, moved: list[int], num_tokens: int, num_known: int) -> None:
        """As `KVCache.adopt`; it may be the first of these pages alone."""
        given = dict(zip(self._moved(num_tokens), moved, strict=False))
        copied: list[int] = []
        if self.num_adopted(moved, num_tokens) < len(moved):
            copied = [given.pop((self._states, page)) for page in range(self._num_states)]
        self._take(slot, given, num_known, self._spans(num_tokens))
        for number, page in enumerate(copied):
            (own,) = self._pages(slot, [(self._states, number)])
            self._copy(page, own)

    def _spans(self, num_tokens: int) -> list[tuple[int, int]]:
        """Each group, and the first of its blocks that going on behind `num_tokens` reads."""
        full = [(group, 0) for group in range(self._num_full)]
        return full + [
            (group, window.needed(num_tokens, self.block_size))
            for window in self._windows
            for group in window.groups
        ]

    def _take(
        self,
        slot: int,
        given: dict[tuple[int, int], int],
        num_tokens: int,
        spans: list[tuple[int, int]],
    ) -> None:
        """Give a slot pages for `num_tokens`: those `given` of groups and blocks, and new ones."""
        blocks = -(-num_tokens // self.block_size)
        self.pool.share(list(given.values()))  # before any is allocated, which might evict them
        first_of, ends = dict(spans), dict.fromkeys(range(self._num_full), blocks)
        for window in self._windows:
            first = first_of[window.groups[0]]
            window.first[slot] = first
            window.end[slot] = end = min(blocks, first + window.most_in_prompts)
            ends.update(dict.fromkeys(window.groups, end))
        ends[self._states] = self._num_states
        for group, first in (*spans, (self._states, 0)):
            pages = [given.get((group, block), -1) for block in range(first, ends[group])]
            new = iter(self.pool.allocate(pages.count(-1)))
            pages = [page if page >= 0 else next(new) for page in pages]
            self._fill(slot, group, first, pages)
        self.table.held[slot] = blocks
        self._charge(slot)

    def fork(self, source: int, slot: int, num_tokens: int, num_known: int) -> None:
        """Give a slot the first `num_tokens` of another one, and pages for its `num_known`; what
        windows read of them, and blocks in which they end, are copied.
        """
        whole, end = num_tokens // self.block_size, -(-num_tokens // self.block_size)
        spans, given = self._spans(num_tokens), dict[tuple[int, int], int]()
        for group in range(self._num_full):
            row = self.table.at(source, list(self._row(group, 0, whole))).tolist()
            given |= {(group, block): page for block, page in enumerate(row)}
        self._take(slot, given, num_known, spans)
        for group, first in spans:
            cells = list(self._row(group, whole if group < self._num_full else first, end))
            pages = self.table.at(source, cells).tolist(), self.table.at(slot, cells).tolist()
            for page, own in zip(*pages, strict=True):
                self._copy(page, own)

    def can_fork(self, source: int, num_tokens: int) -> bool:
        """Whether a slot still has what going on behind its first `num_tokens` reads."""
        return not self.has_states and bool(self.blocks_to_move(source, num_tokens))

    def _pages_of_states(self, slot: int) -> list[int]:
        cells = list(self._row(self._states, 0, self._num_states))
        pages: list[int] = self.table.at(slot, cells).tolist()
        return pages

    def _copy_each(self, sources: list[int], targets: list[int]) -> None:
        """Copy pages with the next plan; none, where there are no sources or no targets."""
        if sources and targets:
            for source, target in zip(sources, targets, strict=True):
                self._copy(source, target)

    def _copy(self, source: int, target: int) -> None:
        self.pool.name_in_step(source, self.newest_step + 1)
        self._copy_sources.append(source)
        self._copy_targets.append(target)

    def _fill(self, slot: int, group: int, first: int, pages: list[int]) -> None:
        groups = self._groups
        for page in pages:
            groups[page] = group
        self.table.put(slot, self._row(group, first, first + len(pages)), pages)

    # Growing

    def num_to_append(self, slot: int) -> int:
        """The pages of the pool that a slot's next block takes."""
        return self._num_full + sum(
            len(window.groups)
            for window in self._windows
            if window.end.item(slot) - window.first.item(slot) < window.most
        )

    def can_append(self, slots: Slots) -> bool:
        """Whether each of these slots can have a block that is not reserved for another one."""
        num_unreserved = self.num_unreserved
        wanted = [self.num_to_append(slot) for slot in slots.tolist()]
        if sum(wanted) <= num_unreserved:
            return True
        unheld = self.reservations.unheld_of(slots)
        beyond = sum(wanted) - int(np.minimum(unheld, int32(wanted)).sum())
        return beyond <= max(0, num_unreserved)

    def append_each(self, slots: Slots) -> None:
        """Append a block to each of several distinct slots."""
        before = self.charged[slots]
        # All at once: pages that a window renews would take those of the slots behind it.
        wanted = sum(self.num_to_append(slot) for slot in slots.tolist())
        pages = iter(self.pool.allocate(wanted))
        for slot in slots.tolist():
            block = self.table.held.item(slot)
            for group in range(self._num_full):
                self._fill(slot, group, block, [next(pages)])
            self.table.held[slot] = block + 1
            for window in self._windows:
                self._extend(slot, window, block + 1, pages)
            self._charge(slot)
        self.reservations.took_each(slots, before)

    def compute(self, slot: int, start: int, last: bool, step: int) -> None:
        """As `KVCache.compute`: behind a prompt's last chunk spans are short again."""
        held = self.table.held.item(slot)
        for window in self._windows:
            need = window.needed(start, self.block_size)
            self._move(slot, window, need, min(held, need + window.most_in_prompts))
            if last:
                self._leave(slot, window, held - window.most, step)

    def _extend(self, slot: int, window: _Window, end: int, pages: Iterator[int]) -> None:
        """Have a span end at `end`: with one of these pages while it is short, else its first."""
        first = window.first.item(slot)
        if window.end.item(slot) - first < window.most:
            for group in window.groups:
                self._fill(slot, group, end - 1, [next(pages)])
            window.end[slot] = end
        else:
            self._move(slot, window, first + 1, end)
            self._leave(slot, window, end - window.most, self.newest_step)

    def _move(self, slot: int, window: _Window, need: int, end: int) -> None:
        """Have a span reach to `end`, with the pages of its blocks in front of `need`."""
        first, old = window.first.item(slot), window.end.item(slot)
        count = min(need - first, end - old)
        if count <= 0:
            return
        for group in window.groups:
            pages = self.table.at(slot, list(self._row(group, first, first + count))).tolist()
            pages = [self._renewed(page, slot) for page in pages]
            self._fill(slot, group, old, pages)
        window.first[slot] = first + count
        window.end[slot] = old + count

    def _renewed(self, page: int, slot: int) -> int:
        """A page for new tokens in place of this one: a free one where there are some to spare and
        this one is named, so that others may still find it.
        """
        pool = self.pool
        if pool.cache.is_named(page):
            if min(pool.num_free, self.num_unreserved) > self.num_spare:
                pool.release([page], self.newest_step)
                return pool.allocate(1)[0]
            pool.cache.unname([page])
        return page

    def _leave(self, slot: int, window: _Window, need: int, step: int) -> None:
        """Give back the pages of a span's blocks in front of `need`, which `step` may read."""
        first = window.first.item(slot)
        count = min(need, window.end.item(slot)) - first
        if count <= 0:
            return
        for group in window.groups:
            pages = self.table.at(slot, list(self._row(group, first, first + count)))
            self.pool.release(pages, step)
        window.first[slot] = first + count

    # Leaving

    def release(self, slots: list[int], last_step: int) -> None:
        """Take back every page of several slots, none of them named after `last_step`."""
        super().release(slots, last_step)
        self._vacate(slots)

    def hand_over(self, slot: int, num_tokens: int) -> list[int]:
        """Take back a slot whose pages no step in flight names, but for those of its first
        `num_tokens`, which the caller owns from now on; returns these.
        """
        kept = self.blocks_to_move(slot, num_tokens)
        rest = np.setdiff1d(self.table.blocks(slot), np.array(kept, np.intp))
        self.pool.let_go(rest.tolist())
        self.give_up_reservation(slot)
        self.table.clear([slot])
        self._vacate([slot])
        return kept

    def _vacate(self, slots: list[int]) -> None:
        self.charged[slots] = 0
        for window in self._windows:
            window.first[slots] = window.end[slots] = 0

    def num_written(self, slots: Slots, computed: Int32) -> int:
        """Tokens whose KV is written or planned to be, as if each group held all of them."""
        unwritten = int(np.add.reduce(self.table.held[slots] * self.block_size - computed))
        num_held = self.pool.num_held - self._num_states * slots.size
        return max(0, num_held * self.block_size // self.num_groups - unwritten)


def _name(digest: bytes, group: int) -> bytes:
    """The name of a block's page of one group."""
    return digest if not group else digest[:-1] + bytes([digest[-1] ^ group])
