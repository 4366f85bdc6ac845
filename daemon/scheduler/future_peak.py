"""The future peak: the most that sequences will hold together until the last of them ends.

Each grows by a token a step and is released at its predicted end, so memory is fullest just before
one ends. Packing by this peak lends every reserved block that is not needed yet: a sequence that
ends before others need its blocks is their borrower. Blocks of the future are intervals, from the
step that needs one to the end of its sequence; as many blocks as overlap most are enough to hand
each on from one sequence to the next.
"""

import numpy as np
import numpy.typing as npt

from daemon.wire.columns import Bools, Int32

Int64 = npt.NDArray[np.int64]

_FAR = 1 << 40


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
