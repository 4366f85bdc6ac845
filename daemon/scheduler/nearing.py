"""Nearing: the time left until each sequence has to begin, in ranges.

EcoServe, section 3.3: ranges of the time left, the last one open. A range is a sequence's
`level`, and so part of its rank. It changes as time passes, a bounded number of times, so
only sequences whose range has just changed are ranked anew.

Ranges of the deadlines themselves would be an order by deadline. Assumed deadlines grow
with the length, so the long answers would be left for an empty pool, too long for any half on
offer. The time left is until an answer has to begin: 2 s before its end is due it is too late.
"""

from bisect import bisect_left
from heapq import heapify, heappop, heappush

from daemon.state.request import State
from daemon.state.sequence import Sequence

RANGES_S = 0.5, 2.0
"""Upper bounds of the ranges, in seconds until a sequence has to begin; the last range is open. The
paper's are 0.2-0.5 s, 0.5-2 s and more than 2 s."""

OPEN = len(RANGES_S)

LEAST_AGAIN_S = 4.0
"""The least new time for a sequence that missed its time: else as long as it has waited."""

MOST_AT_ONCE = 64
"""Most sequences ranked anew before one step. Where the time of many comes together, the others
follow in the next steps, in the order of their times."""

_SPARE = 64

_Next = tuple[float, int, float, Sequence]


class Nearing:
    """An index of one instance's sequences by the time at which each comes into another range.

    A sequence that missed its time is no longer urgent: in the first range it would only make
    others miss theirs. It is of the open range again, with a new time, so that it does not wait for
    ever. The new time is twice as long after its arrival, so that a sequence has few of them.
    Sequences that ended, went elsewhere, or have another time since are dropped.
    """

    def __init__(self, instance: int) -> None:
        self._instance = instance
        self._next: list[_Next] = []  # a heap of (at, number, has to begin by, sequence)
        self._number = 0

    def watch(self, sequence: Sequence, begin_by_s: float, now: float, num_here: int) -> None:
        """Set a sequence's level by `begin_by_s`, and follow it; it is one of `num_here`."""
        if len(self._next) > 2 * num_here + _SPARE:
            self._next = [entry for entry in self._next if self._counts(entry)]
            heapify(self._next)
        sequence.begin_by_s = begin_by_s
        self._look(sequence, now)

    def changed(self, now: float) -> list[Sequence]:
        """The sequences whose levels have just changed, in the order of their times."""
        found: list[Sequence] = []
        while self._next and self._next[0][0] <= now and len(found) < MOST_AT_ONCE:
            last = heappop(self._next)
            if self._counts(last):
                self._look(last[-1], now)
                found.append(last[-1])
        return found

    def _look(self, sequence: Sequence, now: float) -> None:
        """Set a sequence's level, and look at it again when that changes."""
        if sequence.begin_by_s <= now:
            sequence.begin_by_s = now + max(now - sequence.arrived_s, LEAST_AGAIN_S)
        level = sequence.level = bisect_left(RANGES_S, sequence.begin_by_s - now)
        end_s = RANGES_S[level - 1] if level else 0.0
        # Behind the end, so that no rounding leaves it in the range that is over.
        at_s = sequence.begin_by_s - end_s + 1e-6
        self._number += 1
        heappush(self._next, (at_s, self._number, sequence.begin_by_s, sequence))

    def _counts(self, entry: _Next) -> bool:
        """Whether its sequence is here, and this is still its time."""
        _, _, begin_by_s, sequence = entry
        here = sequence.instance == self._instance and sequence.state is not State.FINISHED
        return here and sequence.begin_by_s == begin_by_s
