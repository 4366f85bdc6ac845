"""Nearing: how much time is left until each sequence has to begin, in ranges.

EcoServe, section 3.3: ranges of the time that remains, the last one open. A range is a sequence's
`level`, and so part of its rank. It changes as time passes, a bounded number of times, so that
nobody is ranked anew but those whose range has just changed.

Ranges of the deadlines themselves would be an order by deadline. Deadlines that no client states
grow with the length, so the long answers would be left for an empty pool, too long for any half on
offer. The time counts until an answer has to begin: with 2 s until all of it is due it is lost.
"""

from bisect import bisect_left
from heapq import heapify, heappop, heappush

from daemon.state.request import State
from daemon.state.sequence import Sequence

RANGES_S = 0.5, 2.0
"""Who has to begin within so many seconds is of the first range, and so on; the last one is open.
The paper's are 0.2-0.5 s, 0.5-2 s and more than 2 s."""

OPEN = len(RANGES_S)

LEAST_AGAIN_S = 4.0
"""Who missed its time has to begin in as long as it has waited, and in so long at least."""

MOST_AT_ONCE = 64
"""Ranked anew before one step. Where the time of many comes together, the others follow in the next
steps, those whose time came first first."""

_SPARE = 64

_Next = tuple[float, int, float, Sequence]


class Nearing:
    """An index of one instance's sequences by when each comes into another range.

    Who missed its time is no longer urgent: in the first range it would only make others miss
    theirs. It is of the open one again, with another time, so that it does not wait for ever. That
    time is twice as long after its arrival as the missed one, so that a sequence has few of them.
    Whoever ended, went elsewhere, or has another time since is dropped.
    """

    def __init__(self, instance: int) -> None:
        self._instance = instance
        self._next: list[_Next] = []  # a heap of (at, number, has to begin by, sequence)
        self._number = 0

    def watch(self, sequence: Sequence, begin_by_s: float, now: float, num_here: int) -> None:
        """It has to begin by then, as one of so many: its level is set, and followed from now."""
        if len(self._next) > 2 * num_here + _SPARE:
            self._next = [one for one in self._next if self._counts(one)]
            heapify(self._next)
        sequence.begin_by_s = begin_by_s
        self._look(sequence, now)

    def changed(self, now: float) -> list[Sequence]:
        """Those whose levels have just changed, whose time came first first."""
        found: list[Sequence] = []
        while self._next and self._next[0][0] <= now and len(found) < MOST_AT_ONCE:
            last = heappop(self._next)
            if self._counts(last):
                self._look(last[-1], now)
                found.append(last[-1])
        return found

    def _look(self, sequence: Sequence, now: float) -> None:
        """Set its level, and look at it again when that changes."""
        if sequence.begin_by_s <= now:
            sequence.begin_by_s = now + max(now - sequence.arrived_s, LEAST_AGAIN_S)
        level = sequence.level = bisect_left(RANGES_S, sequence.begin_by_s - now)
        end_s = RANGES_S[level - 1] if level else 0.0
        # Behind the end, so that no rounding leaves it in the range that is over.
        at_s = sequence.begin_by_s - end_s + 1e-6
        self._number += 1
        heappush(self._next, (at_s, self._number, sequence.begin_by_s, sequence))

    def _counts(self, one: _Next) -> bool:
        """Whether it is here, and this is its time still."""
        _, _, begin_by_s, sequence = one
        here = sequence.instance == self._instance and sequence.state is not State.FINISHED
        return here and sequence.begin_by_s == begin_by_s
