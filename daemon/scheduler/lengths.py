"""The lengths of answers, learned from ended ones, by kind.

A predicted length comes without its uncertainty; the lengths that followed such predictions show
both. Meaningless predictions are followed by the lengths of all answers, so no decision on trust is
needed.
"""

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Iterable
from collections.abc import Sequence as Listing
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from daemon.scheduler.gittins_index import IndexTable, index_table
from daemon.state.sequence import UNKNOWN_TOKENS, Left, Outlook, Sequence
from daemon.wire.columns import Int32

WINDOW = 512
"""Most answers remembered of a kind."""

LEAST = 48
"""Ended answers from which on a kind counts; before that, a wider one does."""

LEAST_OF_ALL = 16
"""Ended answers from which on the widest kind counts: for the order a few are better than a guess.
The room that others leave is by the guess until there are more."""

RENEW = 16
"""Ends after which an index is made anew, or an eighth of its answers."""

GUESS_TOKENS = float(UNKNOWN_TOKENS)
"""The assumed length before enough answers have ended: alike, so that the first comes first."""

_FEW = 16
"""Most new answers that are inserted one by one; more are sorted with all."""

Kind = tuple[int, int]
_ANY = -1


DEVIATIONS = 2.0
"""Deviations of the margin of a sum: it is nearly normal, so it is seldom (2 %) higher."""

NEARLY_ALL = 0.95
"""The share of answers that end within the margin."""


class Outgrown(NamedTuple):
    """The amount by which answers outgrow their kept room, in shares of it.

    `beyond` and its square are means over all steps of running answers: each counts for its steps,
    and holds more only in its last ones.
    """

    beyond: float
    square: float
    margin: float  # within which nearly all end

    def num_tokens(self, kept: Int32) -> int:
        """The tokens that running answers together hold beyond `kept`, seldom more."""
        tokens = kept.astype(np.float64)
        variance = max(0.0, self.square - self.beyond**2) * float(tokens @ tokens)
        total = self.beyond * float(np.add.reduce(tokens))
        return math.ceil(total + DEVIATIONS * math.sqrt(variance))


PRIOR = Outgrown(0.01, 0.01**2, 0.15)
"""The value before enough answers ended; its margin is the paper's buffer b (EcoServe, section
3.4)."""


def outgrown(lengths: Listing[float], share: float) -> Outgrown:
    """The outgrowth of answers with these ascending lengths, where the `share` quantile is kept for
    each.
    """
    num = len(lengths)
    kept = lengths[min(num - 1, int(share * num))]
    if kept <= 0.0:
        return PRIOR
    ratios = np.array(lengths) / kept
    over = np.maximum(ratios - 1.0, 0.0)
    squares = over * over
    steps = float(np.add.reduce(ratios)) / num
    return Outgrown(
        float(np.add.reduce(squares)) / num / (2.0 * steps),
        float(np.add.reduce(squares * over)) / num / (3.0 * steps),
        float(over[min(num - 1, int(NEARLY_ALL * num))]),
    )


class KindState(msgspec.Struct, frozen=True, array_like=True):
    """The learned state of one kind, as plain values."""

    prompt: int
    predicted: int
    answers: list[tuple[float, bool]]
    num_fresh: int
    table: IndexTable | None


class LengthKind:
    """The latest answers of one kind, as multiples of their predictions, and their index."""

    def __init__(self) -> None:
        self.answers: deque[tuple[float, bool]] = deque(maxlen=WINDOW)  # (length, was cut)
        self._sorted = array("d")  # their lengths
        self._table: IndexTable | None = None
        self._num_fresh = 0

    def add(self, answers: list[tuple[float, bool]]) -> None:
        """Add answers: (length, whether its limit ended it, so that it would be longer)."""
        if len(answers) > _FEW:
            self.answers.extend(answers)
            self._sorted = array("d", sorted([length for length, _ in self.answers]))
        else:
            for answer in answers:
                if len(self.answers) == WINDOW:
                    del self._sorted[bisect_left(self._sorted, self.answers[0][0])]
                self.answers.append(answer)
                insort(self._sorted, answer[0])
        self._num_fresh += len(answers)
        if self._num_fresh >= max(RENEW, len(self.answers) // 8):
            self._table = None

    @property
    def table(self) -> IndexTable:
        """The index of the remembered answers."""
        if self._table is None:
            self._num_fresh = 0
            self._table = _table(self._sorted, self.answers)
        return self._table

    def outgrown(self, share: float) -> Outgrown:
        """The outgrowth of the `share` quantile of these answers."""
        return outgrown(self._sorted, share)

    def at_most(self, age: float, share: float) -> float:
        """The `share` quantile of lengths over `age`; 0: there is none."""
        first = bisect_right(self._sorted, age)
        longer = len(self._sorted) - first
        return self._sorted[first + min(longer - 1, int(share * longer))] if longer else 0.0

    def state(self, prompt: int, predicted: int) -> KindState:
        """The learned state, as plain values."""
        return KindState(prompt, predicted, list(self.answers), self._num_fresh, self._table)

    @classmethod
    def restored(cls, state: KindState) -> "LengthKind":
        """The kind with this `state`."""
        ended = cls()
        ended.answers.extend(state.answers)
        ended._sorted = array("d", sorted(length for length, _ in state.answers))
        ended._num_fresh, ended._table = state.num_fresh, state.table
        return ended


def _table(ascending: "array[float]", answers: Iterable[tuple[float, bool]]) -> IndexTable:
    """The index of answers, of which `ascending` are the lengths: a cut one hands its weight over
    to all longer ones (Kaplan and Meier); the rest after the longest goes to twice its length.
    """
    lengths = np.array(ascending)
    cuts = np.zeros(lengths.size)
    cut = np.array(sorted([length for length, was_cut in answers if was_cut]))
    among_equals = np.arange(cut.size) - cut.searchsorted(cut)
    cuts[lengths.searchsorted(cut, "right") - 1 - among_equals] = 1.0  # last of equal lengths
    survive = (1.0 - (1.0 - cuts) / np.arange(lengths.size, 0, -1)).cumprod()
    weights = np.append(-np.diff(survive, prepend=1.0), survive[-1])
    lengths = np.append(lengths, 2.0 * lengths[-1])
    kept = weights > 0.0
    return index_table(lengths[kept], weights[kept])


class SeenLengths:
    """Answers' lengths as one instance has learned them.

    Kinds are powers of two of the prompt's length and of the prediction. Lengths are counted in
    predictions, so that a kind of exact predictions has one length, and one of meaningless
    predictions has the lengths of all answers.
    """

    def __init__(self) -> None:
        self._of_kind: dict[Kind, LengthKind] = {}
        # (prompt, output, predicted and most tokens) of answers that are not learned from yet
        self._new: list[tuple[int, int, int, int]] = []
        self._num_ended = 0
        self._outgrown: dict[float, tuple[int, Outgrown]] = {}  # by share, as of a number of ends

    def observe(self, sequence: Sequence) -> None:
        """Note an ended answer; it is learned from at the next query."""
        prompt, predicted = sequence.num_prompt_tokens, sequence.predicted_tokens
        self._new.append((prompt, sequence.num_output_tokens, predicted, sequence.max_tokens))
        self._num_ended += 1
        if len(self._new) == WINDOW:
            self._learn()

    def _learn(self) -> None:
        """Sort noted answers into their kinds."""
        by_kind: defaultdict[Kind, list[tuple[float, bool]]] = defaultdict(list)
        for prompt, num_tokens, predicted, most in self._new:
            length = num_tokens / predicted if predicted > 1 else float(num_tokens)
            answer = length, num_tokens >= most
            for kind in _kinds(prompt, predicted):
                by_kind[kind].append(answer)
        self._new.clear()
        for kind, answers in by_kind.items():
            ended = self._of_kind.get(kind)
            if ended is None:
                ended = self._of_kind[kind] = LengthKind()
            ended.add(answers)

    @property
    def _kinds(self) -> dict[Kind, LengthKind]:
        if self._new:
            self._learn()
        return self._of_kind

    @property
    def any_known(self) -> bool:
        """Whether enough answers ended for the learned lengths to bound growth."""
        return self._num_ended >= LEAST

    def outlook(self, sequence: Sequence) -> Outlook:
        """The outlook of a sequence of its age, within its limit."""
        return self._outlook(sequence, self._narrowest(sequence), _unit(sequence))

    def expected(self, sequence: Sequence) -> tuple[Outlook, Left]:
        """The outlook and the expected rest of a sequence."""
        table, unit = self._narrowest(sequence), _unit(sequence)
        return self._outlook(sequence, table, unit), _left(sequence, table, unit)

    def _outlook(self, sequence: Sequence, table: IndexTable | None, unit: float) -> Outlook:
        age = sequence.num_output_tokens
        most = max(1.0, sequence.max_tokens - age)
        if table is None:
            left = min(GUESS_TOKENS, most)
            return Outlook(left * (age + left), left, left)
        index, span = table.at(age, unit)
        index = min(max(1.0, index), most * (age + most))
        room = span if self._num_ended >= LEAST else max(span, GUESS_TOKENS)
        return Outlook(index, min(max(1.0, span), most), min(max(1.0, room), most))

    def knows(self, sequence: Sequence) -> bool:
        """Whether enough answers of its kind have ended here."""
        return self._narrowest(sequence) is not None

    def left(self, sequence: Sequence) -> Left:
        """The expected rest of a sequence's answer, within its limit."""
        return _left(sequence, self._narrowest(sequence), _unit(sequence))

    def padded(self, sequence: Sequence, num_output_tokens: int, share: float) -> int:
        """The `share` quantile of output tokens of similar answers longer than it is now; within
        its limit.

        The margin over the prediction is the recent error of predictions. An answer longer than all
        before it is expected to be twice as long as it is.
        """
        kind, unit = self._kind_of(sequence), _unit(sequence)
        if kind is not None:
            length = kind.at_most(num_output_tokens / unit, share) * unit
        else:
            predicted = sequence.predicted_tokens
            length = GUESS_TOKENS if predicted < 0 else predicted
        if length <= num_output_tokens:
            length = 2 * num_output_tokens
        return min(sequence.max_tokens, max(num_output_tokens + 1, math.ceil(length)))

    def padding(self, share: float) -> float:
        """The `share` quantile of predicted answers, in multiples of their predictions."""
        ended = self._kinds.get((_ANY, 0))
        known = ended is not None and len(ended.answers) >= LEAST_OF_ALL
        return ended.at_most(0.0, share) if ended is not None and known else 1.0

    def outgrown(self, share: float) -> Outgrown:
        """The outgrowth of answers whose `share` quantile is kept; of predicted answers, or of all
        others where too few were predicted.
        """
        as_of, found = self._outgrown.get(share, (0, PRIOR))
        if as_of != self._num_ended:
            for widest in (_ANY, 0), (_ANY, _ANY):
                ended = self._kinds.get(widest)
                if ended is not None and len(ended.answers) >= LEAST_OF_ALL:
                    found = ended.outgrown(share)
                    break
            self._outgrown[share] = self._num_ended, found
        return found

    def _narrowest(self, sequence: Sequence) -> IndexTable | None:
        """The index of the narrowest of its kinds of which enough answers have ended."""
        kind = self._kind_of(sequence)
        return None if kind is None else kind.table

    def _kind_of(self, sequence: Sequence) -> LengthKind | None:
        """The narrowest of its kinds of which enough answers have ended."""
        of_kind = self._kinds
        kinds = _kinds(sequence.num_prompt_tokens, sequence.predicted_tokens)
        for kind in kinds:
            ended = of_kind.get(kind)
            least = LEAST_OF_ALL if kind is kinds[-1] else LEAST
            if ended is not None and len(ended.answers) >= least:
                return ended
        return None

    def state(self) -> list[KindState]:
        """The learned state, as plain values."""
        return [ended.state(*kind) for kind, ended in self._kinds.items()]

    @classmethod
    def restored(cls, state: list[KindState]) -> "SeenLengths":
        """The lengths with this `state`."""
        lengths = cls()
        for kind in state:
            lengths._of_kind[kind.prompt, kind.predicted] = LengthKind.restored(kind)
            if kind.prompt == _ANY and kind.predicted <= 0:
                lengths._num_ended += len(kind.answers)
        return lengths


def _left(sequence: Sequence, table: IndexTable | None, unit: float) -> Left:
    outputs = sequence.num_output_tokens
    most = max(1.0, sequence.max_tokens - outputs)
    left, square = GUESS_TOKENS, GUESS_TOKENS * GUESS_TOKENS
    if table is not None:
        left, square = table.left_at(float(outputs), unit)
    left, square = min(max(1.0, left), most), min(max(1.0, square), most * most)
    known = sequence.num_prompt_tokens + outputs
    return Left(int(left), int(left * known + square / 2))


def _unit(sequence: Sequence) -> float:
    predicted = sequence.predicted_tokens
    return float(predicted) if predicted > 1 else 1.0


def _kinds(num_prompt_tokens: int, predicted: int) -> tuple[Kind, ...]:
    """The kinds of a sequence with such a prompt and prediction, narrowest first."""
    size = max(1, predicted).bit_length() if predicted >= 0 else _ANY
    return _kinds_of(num_prompt_tokens.bit_length(), size)


@cache
def _kinds_of(prompt: int, size: int) -> tuple[Kind, ...]:
    """The kinds of a power of two of the prompt's length and one of the prediction."""
    return (
        ((prompt, size), (_ANY, _ANY))
        if size == _ANY
        else ((prompt, size), (_ANY, size), (_ANY, 0))
    )
