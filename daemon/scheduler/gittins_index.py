"""The Gittins index of a distribution of lengths: the least expected work to an answer's end.

An answer of age a is worth 1 / S when it ends, S being its length: people notice an answer's
time per token. The index at age a is the least, over all spans d, of

    E[min(S - a, d)] / E[1 / S where S - a <= d]

given S > a: the mean cost in tokens of a unit of worth. It falls with age where answers are alike
(begun ones come first), rises where tails are heavy (those with least service come first), and is
left * S where the length S is known (the shortest come first).
"""

from bisect import bisect_right
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_KNOTS = 32
_ROWS = 8  # knots at a time: their columns stay in the processor's cache
_TINY = 1e-6

LEAST_SHARE = 0.3
"""The least share of equally old answers that end within a span: fewer are an accident."""

FEW = 16
"""The least rest of the sample that is used: beyond it the expected rest grows with age."""

LEAST_LEFT = 1 / 8
"""The least span of an answer older than the sample, as a share of its age."""


class IndexTable(msgspec.Struct, frozen=True):
    """An index by age, straight between its knots; ages and lengths in one unit."""

    ages: list[float]  # rising from 0
    index: list[float]  # in that unit, squared
    spans: list[float]  # mean length spent on the best span
    left: list[float] = []  # mean length left; none in an older journal
    left_squares: list[float] = []  # mean of its square

    def at(self, age: float, unit: float) -> tuple[float, float]:
        """Index and span at an age, all in tokens; the table's unit is `unit` tokens."""
        ages = self.ages
        age /= unit
        place = bisect_right(ages, age)
        if place == len(ages):
            longer = age / ages[-1] if ages[-1] else 1.0
            span = max(self.spans[-1] * longer, LEAST_LEFT * age)
            index = max(self.index[-1] * longer * longer, span * (age + span))
            return index * unit * unit, span * unit
        low, high = ages[place - 1], ages[place]
        share = (age - low) / (high - low)
        costs, spans = self.index, self.spans
        cost = costs[place - 1] + share * (costs[place] - costs[place - 1])
        mean = spans[place - 1] + share * (spans[place] - spans[place - 1])
        return cost * unit * unit, mean * unit

    def left_at(self, age: float, unit: float) -> tuple[float, float]:
        """The mean length left at an age and its mean square, in tokens: the values at the knot
        before it, and more for what it is older.
        """
        if not self.left:
            return self.at(age, unit)[1], self.at(age, unit)[1] ** 2
        place = min(bisect_right(self.ages, age / unit), len(self.ages)) - 1
        older = LEAST_LEFT * max(0.0, age / unit - self.ages[place])
        left, square = self.left[place] + older, self.left_squares[place] + older * older
        return left * unit, square * unit * unit


def index_table(lengths: Float64, weights: Float64) -> IndexTable:
    """The table of N lengths, rising and above 0, that have these weights."""
    steps = np.linspace(0, lengths.size - 1, min(_KNOTS, lengths.size)).astype(np.intp)
    chosen = lengths[steps]
    chosen = chosen[np.append(True, chosen[1:] > chosen[:-1])]
    # Answers that end at a knot are alive just before it, and not just behind it.
    knots = np.sort(np.concatenate([[0.0], chosen, chosen[:-1] * (1.0 + _TINY)]))
    before = lengths.searchsorted(knots, side="left")
    sums = _Sums(
        lengths,
        *(
            np.concatenate([[0.0], column.cumsum()])
            for column in (weights, weights / lengths, weights * lengths)
        ),
    )
    ended, moment = sums.ended, sums.moment
    alive = ended[-1] - ended[before]
    known = alive >= min(FEW / lengths.size, 1.0) * ended[-1]
    knots, before, alive = knots[known], before[known], alive[known]
    costs, spent = np.empty(knots.size), np.empty(knots.size)
    for first in range(0, knots.size, _ROWS):
        rows = slice(first, first + _ROWS)
        costs[rows], spent[rows] = _best_spans(sums, knots[rows], before[rows], alive[rows])
    square = np.concatenate([[0.0], (weights * lengths * lengths).cumsum()])
    left = (moment[-1] - moment[before]) / alive - knots
    left_squares = (square[-1] - square[before]) / alive - knots * (2.0 * left + knots)
    columns = knots, costs, spent / alive, left, left_squares
    return IndexTable(*(column.tolist() for column in columns))


class _Sums(NamedTuple):
    """Lengths [N], and up to each of them [N + 1] the weights, their worth and their tokens."""

    lengths: Float64
    ended: Float64
    worth: Float64
    moment: Float64


def _best_spans(
    sums: _Sums, knots: Float64, before: npt.NDArray[np.intp], alive: Float64
) -> tuple[Float64, Float64]:
    """(least cost of a unit of worth, tokens spent in that span) at some knots [K], of which the
    lowest has `before[0]` of the lengths before it: no span ends there.
    """
    first = int(before[0])
    lengths, ended = sums.lengths[first:], sums.ended[first + 1 :]
    ends = ended - sums.ended[before][:, None]  # [K, N]: weight that ends within each span
    spent = sums.moment[first + 1 :] - sums.moment[before][:, None] - knots[:, None] * ends
    spent += np.maximum(0.0, lengths - knots[:, None]) * (ended[-1] - ended)
    won = np.maximum(sums.worth[first + 1 :] - sums.worth[before][:, None], 1e-30)
    ratio = np.where(ends >= LEAST_SHARE * alive[:, None], spent / won, np.inf)
    best = np.arange(knots.size), ratio.argmin(axis=1)
    return ratio[best], spent[best]
