"""Snapshots: states of prefixes in the prefix cache, from which later sequences go on.

A state is that of all tokens before it and cannot be cut back, so pages of full layers alone are no
prefix for a model with recurrent layers. A snapshot is a copy of a sequence's state pages behind
some of its blocks, named by the chain hash of the last of these. Its pages are the pool's: owned
until the step that copies them is planned and their name is known, then cached as others are.

Few are kept: near the end of a prompt, where prompts were seen to part, and behind what was decoded
so far, where a later one replaces the one before. Where a new one finds no free pages, or all have
their share of the pool, the one goes that is worth least: the tokens that it saves beyond the last
snapshot that several sequences read, times the share of its kind that was of use. That counts on
top of the worth of the one that went last (GreedyDual), so that what is not used for long goes. One
whose only reader left a later one is worth nothing any more, nor is one whose last block is gone.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import takewhile

import msgspec

from daemon.memory.block_pool import BlockPool

MOST_SHARE = 0.5
"""The largest share of a pool that snapshots take beside keys and values."""

LEAST_BLOCKS = 4
"""The fewest blocks between two snapshots of a prompt: each costs a step of its own."""

MOST_SEEN = 1 << 14
"""Hashes of blocks that are remembered where no pages of them are cached."""

_MARK_BYTES = 3
_MARK = 1 << (8 * _MARK_BYTES - 1)


class SnapshotState(msgspec.Struct, frozen=True, array_like=True):
    """The snapshots of an instance at rest; their pages are among the pool's cached ones."""

    # digest, then as a snapshot's fields behind its pages
    named: list[tuple[bytes, int, int, float, bytes, int, bool]]
    floor: float
    counts: tuple[int, int, int]  # made, sequences that began from one, their tokens
    of_kinds: list[tuple[int, int]]  # made of each kind, and those of them that were read
    seen: list[bytes]


class _Kind(IntEnum):
    """The kind of a snapshot, by what it stands behind."""

    PARTING = 0  # blocks that another prompt has too
    PROMPT = 1
    ANSWER = 2


@dataclass(slots=True)
class _Snapshot:
    """A snapshot with a name; its pages are cached, or read by a plan to come."""

    pages: list[int]
    num_saved: int  # tokens, beyond those of the last shared snapshot before it
    kind: int  # of `_Kind`
    floor: float  # of all when it was made or was of use
    before: bytes  # the last shared one before it; empty: there is none
    num_reads: int = 0  # sequences that began from it
    is_passed: bool = False  # by its only reader, which left a later one

    @property
    def is_shared(self) -> bool:
        """Whether several sequences have its tokens."""
        return self.kind == _Kind.PARTING or self.num_reads > 1


@dataclass(slots=True, eq=False)
class _Copy:
    """A snapshot whose copy or name is still to come; it owns its pages."""

    record: "_Record"
    pages: list[int]
    num_tokens: int
    kind: _Kind
    step: int = 0  # whose plan copies it; 0: not planned yet

    @property
    def digest(self) -> bytes:
        """Its name, of the last of its blocks; empty: not known yet."""
        hashes, number = self.record.hashes, self.num_tokens // self.record.block_size
        return hashes[number - 1] if number <= len(hashes) else b""


@dataclass(slots=True)
class _Record:
    """The snapshots of the sequence in a slot."""

    block_size: int
    hashes: list[bytes]  # the sequence's own list, which grows
    borders: list[int]  # tokens of its prompt behind which one is due, the next one first
    parting: int  # the border up to which another prompt had the same tokens
    origin: bytes  # the one with which it began
    before: bytes  # the last shared one that it made or began with
    base: int  # the tokens of that
    made: list[bytes] = field(default_factory=list)
    of_answer: bytes = b""  # the newest one of what it decoded
    coming: _Copy | None = None  # the one after that


class Snapshots:
    """The snapshots of one instance: it takes and names their pages; the caller orders copies."""

    def __init__(
        self,
        pool: BlockPool,
        num_pages: int,
        block_size: int,
        share: float,
        behind_blocks: bool = False,
    ) -> None:
        """`num_pages` of a sequence's states; `share` of the pool that all may take.

        `behind_blocks`: prefixes have pages of blocks too, without which states are of no use.
        """
        self.num_pages = num_pages
        self.num_made = self.num_hits = self.num_hit_tokens = 0
        self._pool, self._block_size, self._behind_blocks = pool, block_size, behind_blocks
        self._most = int(share * pool.num_blocks) // num_pages
        self._named: dict[bytes, _Snapshot] = {}
        self._floor = 0.0  # the worth of the one that went last
        self._of_kinds = [(0, 0)] * len(_Kind)  # made, and read
        self._records: dict[int, _Record] = {}  # by slot
        self._open: dict[_Copy, None] = {}
        self._read: list[tuple[int, list[int]]] = []  # slots, and pages that the next plan copies
        self._origins: dict[int, tuple[bytes, int]] = {}  # of slots whose sequences will begin
        self._seen: dict[bytes, None] = {}

    def __len__(self) -> int:
        """Snapshots that have a name."""
        return sum(map(self._is_whole, self._named))

    @property
    def owned(self) -> list[int]:
        """The pages that it owns, once for each time."""
        open_pages = [page for copy in self._open for page in copy.pages]
        return open_pages + [page for _, pages in self._read for page in pages]

    # Prefixes

    def longest(self, digests: Listing[bytes], most: int) -> int:
        """The blocks of the longest prefix of these, of at most `most`, that has a snapshot."""
        if not self._named:
            return 0
        named = (count for count in range(most, 0, -1) if digests[count - 1] in self._named)
        return next((count for count in named if self._is_whole(digests[count - 1])), 0)

    def pages_of(self, digest: bytes) -> tuple[int, ...]:
        """The pages of a snapshot."""
        return tuple(self._named[digest].pages)

    def read(self, slot: int, digest: bytes, num_tokens: int) -> None:
        """Keep a snapshot until the next plan has copied it for a slot, whose sequence begins
        behind its `num_tokens`.
        """
        snapshot = self._named[digest]
        self._pool.share(snapshot.pages)
        self._read.append((slot, snapshot.pages))
        if not snapshot.num_reads:
            made, read = self._of_kinds[snapshot.kind]
            self._of_kinds[snapshot.kind] = made, read + 1
        snapshot.num_reads += 1
        snapshot.is_passed = False
        self._touch(digest)
        self._origins[slot] = digest, num_tokens
        self.num_hits += 1
        self.num_hit_tokens += num_tokens

    def read_for(self, slot: int) -> list[int]:
        """The pages that a slot reads; none: it reads no snapshot."""
        return next((pages for reader, pages in self._read if reader == slot), [])

    def saw(self, digests: Iterable[bytes]) -> None:
        """Remember that these blocks were computed."""
        for digest in digests:
            self._seen.pop(digest, None)
            self._seen[digest] = None
        while len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def num_seen(self, digests: Iterable[bytes]) -> int:
        """How many of these blocks, from the first on, were computed before."""
        return sum(1 for _ in takewhile(self._seen.__contains__, digests))

    # Sequences

    def begin(
        self, slot: int, start: int, hashes: list[bytes], border: int, parting: int = 0
    ) -> None:
        """A sequence has a slot, with `start` tokens computed; snapshots are to be made behind
        `border` tokens, and behind `parting`, up to which another prompt had the same ones.
        """
        kept, last = list[int](), start
        for each in sorted({border, parting}):
            if each >= last + LEAST_BLOCKS * self._block_size:
                kept.append(each)
                last = each
        origin, base = self._origins.pop(slot, (b"", 0))
        before, snapshot = origin, self._named.get(origin)
        if snapshot is not None and not snapshot.is_shared:
            before, base = snapshot.before, base - snapshot.num_saved
        known = kept, parting, origin, before, base
        self._records[slot] = _Record(self._block_size, hashes, *known)

    def until_border(self, slot: int, start: int, count: int) -> int:
        """The tokens of a chunk of `count` from `start` on, up to the next border."""
        ends = (border for border in self._records[slot].borders if border > start)
        return min(count, next(ends, start + count) - start)

    def take(self, slot: int, num_tokens: int, room: int) -> list[int]:
        """Pages for a snapshot of a slot's prompt, behind `num_tokens` that the newest plan
        computes; none where none is wanted, or `room` has too few.
        """
        record = self._records[slot]
        if num_tokens not in record.borders:
            return []
        record.borders = [border for border in record.borders if border > num_tokens]
        kind = _Kind.PARTING if num_tokens == record.parting else _Kind.PROMPT
        copy = _Copy(record, [], num_tokens, kind)
        if copy.digest and not self._is_whole(copy.digest):
            self._open_with_pages(copy, room)
        return copy.pages

    def take_of_answer(self, slot: int, num_tokens: int, room: int) -> list[int]:
        """Pages for a snapshot of what a slot has decoded, behind all its `num_tokens`; it gets its
        name with these blocks. None where there is no room, or the one before waits for its name.
        """
        record = self._records[slot]
        if record.coming is not None:
            return []
        copy = _Copy(record, [], num_tokens, _Kind.ANSWER)
        if self._open_with_pages(copy, room):
            record.coming = copy
        return copy.pages

    def name_of_answer(self, slot: int) -> None:
        """Name the newest snapshot of what a slot has decoded, if the hash of its last block is
        known by now.
        """
        record = self._records.get(slot)
        if record is not None and record.coming is not None:
            self._name(record.coming)

    def planned(self, step: int) -> None:
        """The plan of `step` has the copies that were ordered."""
        for _, pages in self._read:
            self._pool.release(pages, step)
        self._read.clear()
        for copy in [copy for copy in self._open if not copy.step]:
            copy.step = step
            self._name(copy)

    def leave(self, slot: int) -> list[int]:
        """The sequence of a slot leaves it; returns pages to which no copies are due any more."""
        self._origins.pop(slot, None)
        for reading in [pair for pair in self._read if pair[0] == slot]:
            self._read.remove(reading)
            self._pool.let_go(reading[1])
        self.name_of_answer(slot)
        record = self._records.pop(slot, None)
        coming = record.coming if record is not None else None
        if coming is None or coming.digest:
            return []
        return self._close(coming)

    def forget(self, slot: int) -> list[int]:
        """Drop what a slot's sequence made, as it failed; returns as `leave`."""
        record = self._records.get(slot)
        if record is None:
            return []
        gone = [page for copy in self._of(record) for page in self._close(copy)]
        for digest in record.made:
            self._drop(digest)
        record.made.clear()
        record.borders.clear()
        record.coming = None
        return gone

    def _of(self, record: _Record) -> list[_Copy]:
        return [copy for copy in self._open if copy.record is record]

    def _close(self, copy: _Copy) -> list[int]:
        """Let go of one without a name; returns its pages if their copies are not planned."""
        del self._open[copy]
        self._pool.release(copy.pages, copy.step)
        return [] if copy.step else copy.pages

    def _name(self, copy: _Copy) -> None:
        """Name a snapshot and let go of it, if it is planned and its name is known; it replaces the
        one before it of the same answer.
        """
        digest, record = copy.digest, copy.record
        if not (digest and copy.step):
            return
        del self._open[copy]
        if not self._is_whole(digest):
            self._drop(digest)
            self._pool.cache.register(self._names(digest), copy.pages)
            fields = copy.num_tokens - record.base, copy.kind, self._floor, record.before
            self._named[digest] = _Snapshot(copy.pages, *fields)
            if copy.kind is _Kind.PARTING:
                record.before, record.base = digest, copy.num_tokens
            self.num_made += 1
            if not (copy is record.coming and record.of_answer):
                made, read = self._of_kinds[copy.kind]
                self._of_kinds[copy.kind] = made + 1, read
        self._pass(record)
        self._pool.release(copy.pages, copy.step)
        if record.coming is copy:
            record.coming = None
            if record.of_answer in record.made:
                record.made.remove(record.of_answer)
                self._drop(record.of_answer)
            record.of_answer = digest
        record.made.append(digest)

    def _pass(self, record: _Record) -> None:
        """The snapshot with which a sequence began is worth nothing now that it left a later one,
        unless others began with it too.
        """
        origin = self._named.get(record.origin)
        if origin is not None and not origin.is_shared:
            origin.is_passed = True

    def _touch(self, digest: bytes) -> None:
        """One was of use, and so were those before it: without it they would have been read."""
        idle = self._pool.cache.idle
        while self._is_whole(digest):
            snapshot = self._named[digest]
            snapshot.floor = self._floor
            if all(page in idle for page in snapshot.pages):
                self._pool.share(snapshot.pages)
                self._pool.let_go(snapshot.pages)
            digest = snapshot.before

    def _value(self, num_saved: int, kind: int, num_reads: int = 0) -> float:
        """The tokens that a snapshot saves, times the share of its kind that was of use, unless two
        prompts show that it is, or it was.
        """
        if num_reads or kind == _Kind.PARTING:
            return num_saved
        made, read = self._of_kinds[kind]
        return num_saved * (1 + read) / (1 + made)

    # Pages

    def _open_with_pages(self, copy: _Copy, room: int) -> bool:
        """Give a snapshot its pages, if those that save less leave room for it."""
        if room < self.num_pages:
            return False
        for digest in [digest for digest in self._named if not self._is_whole(digest)]:
            self._drop(digest)
        if not self._make_room(
            self._floor + self._value(copy.num_tokens - copy.record.base, copy.kind)
        ):
            return False
        copy.pages = self._pool.allocate(self.num_pages)
        self._open[copy] = None
        return True

    def _make_room(self, most_worth: float) -> bool:
        """Drop those that are worth least, at most so much, until one more has free pages and
        leaves all in their share; whether it does so.
        """
        while True:
            is_beyond = len(self._named) + len(self._open) >= self._most
            if not is_beyond and self._pool.num_free >= self.num_pages:
                return True
            worth, least = min(self._idle_worths(), default=(0.0, b""))
            if not least or worth > most_worth:
                return not is_beyond
            self._floor = max(self._floor, worth)
            self._drop(least)

    def _idle_worths(self) -> Iterator[tuple[float, bytes]]:
        """The worth of each that nothing reads, and its name."""
        find, idle = self._pool.cache.find, self._pool.cache.idle
        for digest, snapshot in self._named.items():
            if snapshot.pages[0] in idle:
                is_reached = not self._behind_blocks or find(digest) >= 0
                value = self._value(snapshot.num_saved, snapshot.kind, snapshot.num_reads)
                is_useful = is_reached and not snapshot.is_passed
                yield (snapshot.floor + value if is_useful else 0.0), digest

    def _names(self, digest: bytes) -> list[bytes]:
        """The names of a snapshot's pages in the prefix cache."""
        return [self._page_name(digest, page) for page in range(self.num_pages)]

    def _page_name(self, digest: bytes, page: int) -> bytes:
        tail = int.from_bytes(digest[-_MARK_BYTES:]) ^ (_MARK | page)
        return digest[:-_MARK_BYTES] + tail.to_bytes(_MARK_BYTES)

    def _is_whole(self, digest: bytes) -> bool:
        """Whether there is such a snapshot, none of whose pages was taken for anything else: they
        are cached in a row, so the first or the last of them would be gone.
        """
        snapshot, find = self._named.get(digest), self._pool.cache.find
        return snapshot is not None and all(
            0 <= snapshot.pages[page] == find(self._page_name(digest, page))
            for page in (0, self.num_pages - 1)
        )

    def _drop(self, digest: bytes) -> None:
        """Free what is left of a snapshot, or have it get free once nothing names it."""
        gone = self._named.pop(digest, None)
        if gone is not None:
            self._lengthen(digest, gone)
        cache = self._pool.cache
        left = [page for page in map(cache.find, self._names(digest)) if page >= 0]
        idle = [page for page in left if page in cache.idle]
        self._pool.share(idle)
        cache.unname(left)
        self._pool.let_go(idle)

    def _lengthen(self, digest: bytes, gone: _Snapshot) -> None:
        """Those behind one that is gone save its tokens too."""
        for snapshot in self._named.values():
            if snapshot.before == digest:
                snapshot.before = gone.before
                snapshot.num_saved += gone.num_saved
        records = {id(copy.record): copy.record for copy in self._open}
        records |= {id(record): record for record in self._records.values()}
        for record in records.values():
            if record.before == digest:
                record.before = gone.before
                record.base -= gone.num_saved

    # Checkpoints

    def state(self) -> SnapshotState:
        """The snapshots as plain values; no sequence has any."""
        named = self._named.items()
        counts = self.num_made, self.num_hits, self.num_hit_tokens
        return SnapshotState(
            [
                (digest, it.num_saved, it.kind, it.floor, it.before, it.num_reads, it.is_passed)
                for digest, it in named
            ],
            self._floor,
            counts,
            list(self._of_kinds),
            list(self._seen),
        )

    def restore(self, state: SnapshotState) -> None:
        """Put new ones into a written state; their pages are cached already, or were taken (-1)."""
        self._floor = state.floor
        self.num_made, self.num_hits, self.num_hit_tokens = state.counts
        self._seen = dict.fromkeys(state.seen)
        self._of_kinds = list(state.of_kinds)
        for digest, num_saved, kind, floor, before, num_reads, is_passed in state.named:
            pages = list(map(self._pool.cache.find, self._names(digest)))
            fields = num_saved, kind, floor, before, num_reads, is_passed
            self._named[digest] = _Snapshot(pages, *fields)
