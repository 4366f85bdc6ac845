"""The future peak: the most that sequences will hold together until the last of them ends.

Each grows by a token a step and is released at its predicted end, so memory is fullest just before
one ends. Packing by this peak lends every reserved block that is not needed yet: a sequence that
ends before others need its blocks is their borrower. Blocks of the future are intervals, from the
step that needs one to the end of its sequence; as many blocks as overlap most are enough to hand
each on from one sequence to the next.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from daemon.memory.kv_cache import KVCache
from daemon.wire.columns import Bools, Int32

Int64 = npt.NDArray[np.int64]

_FAR = 1 << 40


def future_peak(known: Int32, left: Int32, kv: KVCache) -> "FuturePeak":
    """The future peak of sequences of a pool: in tokens, or in pages where layers have windows."""
    return PagePeak(known, left, kv.blocks_of) if kv.has_windows else FuturePeak(known, left)


class FuturePeak:
    """The future peak of sequences with `known` tokens and `left` >= 1 steps each; int [K]."""

    def __init__(self, known: Int32, left: Int32) -> None:
        order = left.argsort(kind="stable")
        self._left: Int64 = left[order].astype(np.int64)
        self._counts = np.arange(left.size, -1, -1, dtype=np.int64)  # ending then or later
        behind = np.zeros(left.size + 1, np.int64)
        behind[:-1] = known[order].astype(np.int64)[::-1].cumsum()[::-1]
        self._behind = behind  # known tokens of sequences ending then or later; 0 after the last
        at_ends = behind[:-1] + self._counts[:-1] * self._left
        self.peak = int(at_ends.max(initial=0))
        worst = np.zeros(left.size + 1, np.int64)
        np.maximum.accumulate(at_ends + self._left, out=worst[1:])
        self._worst = worst  # of ends before each, with a newcomer's growth until then
        self._at_ends: Int64 = at_ends

    def with_each(self, known: Int32, left: Int32) -> Int64:
        """For each newcomer, the peak until its own end if it ran beside them; [N]."""
        steps: Int64 = left.astype(np.int64)
        place = self._left.searchsorted(steps, "right")  # sequences before it end no later
        at_own = self._left.searchsorted(steps, "left")
        together = self._behind[at_own] + (self._counts[at_own] + 1) * steps
        peaks: Int64 = known.astype(np.int64) + np.maximum(self._worst[place], together)
        return peaks

    def wait(self, known: int, left: int, room: int) -> int:
        """Steps until a newcomer fits that does not fit now: until the end after which it would, if
        no other came. Sequences that end before do not delay it.
        """
        if not self._left.size:
            return 0
        after = np.zeros(self._left.size, np.int64)  # the most of later ends, with its growth
        grown = (self._at_ends + self._left)[::-1]
        np.maximum.accumulate(grown[:-1], out=after[1:])
        steps = self._left
        ends = steps + left
        place = self._left.searchsorted(ends, "left")
        together = self._behind[place] + self._counts[place] * ends + known + left
        fits = (np.maximum(after[::-1] + known - steps, together)) <= room
        return int(steps[fits.argmax()]) if fits.any() else int(steps[-1])

    def fits(self, known: Int32, left: Int32, room: int) -> Bools:
        """Whether each newcomer fits into `room` tokens until its own end; [N]."""
        fitting: Bools = self.with_each(known, left) <= room
        return fitting

    def distance(self, left: Int32) -> Int64:
        """Steps between each newcomer's end and the nearest other end; [N]."""
        place = self._left.searchsorted(left)
        ends = np.concatenate([[-_FAR], self._left, [_FAR]])
        nearest: Int64 = np.minimum(left - ends[place], ends[place + 1] - left)
        return nearest

    @property
    def num_steps(self) -> int:
        """Steps until the last of them ends."""
        return int(self._left[-1]) if self._left.size else 0


class PagePeak(FuturePeak):
    """The future peak in pages, of which a sequence's tokens behind a window take no more.

    All that is asked in tokens of `FuturePeak` is answered in pages.
    """

    def __init__(self, known: Int32, left: Int32, pages_of: Callable[[Int32], Int32]) -> None:
        """`pages_of`: the pages that sequences of so many tokens hold, for any array of them."""
        order = left.argsort(kind="stable")
        self._left = left[order].astype(np.int64)
        self._known = known[order].astype(np.int64)
        self._pages_of = pages_of
        self._at_ends = self._at(self._left)
        self.peak = int(self._at_ends.max(initial=0))

    def _at(self, steps: Int64) -> Int64:
        """Pages after each number of steps, just before those that end then are released; [N]."""
        there = self._left >= steps[:, None]
        held = self._pages_of(self._known + steps[:, None]) * there
        pages: Int64 = held.sum(1, dtype=np.int64)
        return pages

    def with_each(self, known: Int32, left: Int32) -> Int64:
        """See `FuturePeak`."""
        own = known.astype(np.int64)[:, None]
        beside = self._at_ends + self._pages_of(own + self._left)
        before = np.where(self._left <= left[:, None], beside, 0)
        at_own = self._at(left.astype(np.int64)) + self._pages_of(known + left)
        peaks: Int64 = np.maximum(at_own, before.max(1, initial=0))
        return peaks

    def wait(self, known: int, left: int, room: int) -> int:
        """See `FuturePeak`."""
        steps = self._left
        if not steps.size:
            return 0
        grown = self._pages_of(np.maximum(known + steps - steps[:, None], 0))
        later = np.arange(steps.size) > np.arange(steps.size)[:, None]
        after = np.where(later, self._at_ends + grown, 0).max(1)
        ends = steps + left
        together = self._at(ends) + self._pages_of(np.full(1, known + left, np.int64))
        fits = np.maximum(after, together) <= room
        return int(steps[fits.argmax()]) if fits.any() else int(steps[-1])
