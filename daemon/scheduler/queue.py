"""The waiting queue of one instance, in the policy's order."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter, itemgetter

from daemon.state.sequence import NOTHING_LEFT, Sequence
from daemon.wire.columns import Int32, int32

OrderKey = tuple[float, int, int]  # (rank, arrival, number of earlier pushes)
_Entry = tuple[float, int, int, Sequence]
_SEQUENCE: Callable[[_Entry], Sequence] = itemgetter(3)
_PARKED_TOKENS: Callable[[Sequence], int] = attrgetter("residence.parked_tokens")

HEAVY_TOKENS = 128
"""An answer that is likely to be longer is heavy (TetriInfer, section 5.1)."""


def is_heavy(num_prompt_tokens: int, likely_length: int) -> bool:
    """Whether a sequence of these lengths has a heavy answer."""
    return likely_length - num_prompt_tokens > HEAVY_TOKENS


class WaitingQueue:
    """A list kept sorted by the key that each sequence had when it was pushed.

    A rank that changes later does not move its sequence. NaN ranks come last. Sequences to be
    ranked anew stand behind all others, in the order in which that will be done, until they are
    removed and pushed again: ranking many takes long, so it may be spread.
    """

    def __init__(self) -> None:
        self._order: list[_Entry] = []
        self._begun: list[_Entry] = []  # entries of sequences that have delivered a token
        self._begun_unranked: list[_Entry] = []  # the same of those to be ranked anew
        # (key, likely length, expected length if it has begun) by sequence id
        self._pushed: dict[int, tuple[OrderKey, int, int]] = {}
        self._num_pushed = 0
        self.num = 0  # waiting sequences
        self.unranked: dict[int, Sequence] = {}  # by id
        self._parked: dict[int, Sequence] = {}  # by id: with KV kept when they came
        self.prompt_tokens = 0  # of all waiting, here and below
        self.output_tokens = 0  # delivered
        self.likely_tokens = 0  # their likely lengths
        self.num_heavy = 0  # sequences with likely long answers
        self.num_begun = 0  # sequences that have delivered a token
        self.begun_tokens = 0  # their expected lengths
        self.left_steps = self.left_work = 0  # see `Left`
        self.num_changes = 0  # arrivals and departures

    def __len__(self) -> int:
        return self.num

    def __bool__(self) -> bool:
        return self.num > 0

    def __iter__(self) -> Iterator[Sequence]:
        ranked = map(_SEQUENCE, self._order)
        return chain(ranked, self.unranked.values()) if self.unranked else ranked

    def begun(self) -> Iterator[Sequence]:
        """The sequences that have delivered a token, in order."""
        ranked = map(_SEQUENCE, self._begun)
        return chain(
            ranked, (waiting for waiting in self.unranked.values() if waiting.num_output_tokens)
        )

    @property
    def first_begun(self) -> Sequence | None:
        """The first of the sequences that have delivered a token, by the ranks that they have; None
        if there is none.
        """
        begun, unranked = self._begun, self._begun_unranked
        if not unranked:
            return begun[0][3] if begun else None
        return (min(begun[0], unranked[0]) if begun else unranked[0])[3]

    def at(self, place: int) -> Sequence:
        """The sequence at a place in the queue."""
        if place < len(self._order):
            return self._order[place][3]
        return next(islice(self.unranked.values(), place - len(self._order), None))

    @property
    def first(self) -> Sequence:
        """The next sequence to run."""
        return self._order[0][3] if self._order else self.at(0)

    @property
    def any_ranked(self) -> bool:
        """Whether the first has its rank, or none waits."""
        return bool(self._order) or not self.num

    @property
    def num_tokens(self) -> int:
        """Known tokens of all waiting sequences."""
        return self.prompt_tokens + self.output_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens of all waiting sequences without kept KV: the work of prefill."""
        num_tokens = self.prompt_tokens + self.output_tokens
        if not self._parked:
            return num_tokens
        return num_tokens - sum(map(_PARKED_TOKENS, self._parked.values()))

    def columns(self, most: int) -> tuple[Int32, Int32]:
        """(known tokens, likely lengths) of the first `most`, in order."""
        first = list(islice(self, most))
        known = int32([sequence.num_known_tokens for sequence in first])
        return known, int32([self._pushed[sequence.id][1] for sequence in first])

    def push(self, sequence: Sequence) -> None:
        """Insert a sequence by its key. Raises ValueError if it is here already."""
        if sequence.id in self._pushed:
            raise ValueError(f"sequence {sequence.id} waits here already")
        rank, arrival, number = sequence.rank, sequence.arrival, self._num_pushed
        self._num_pushed = number + 1
        self.num += 1
        self.num_changes += 1
        if rank != rank:
            rank = float("inf")
        entry = rank, arrival, number, sequence
        insort(self._order, entry)
        prompt, likely, expected = sequence.num_prompt_tokens, sequence.likely_length, 0
        self.prompt_tokens += prompt
        self.likely_tokens += likely
        self.num_heavy += likely - prompt > HEAVY_TOKENS
        if outputs := sequence.num_output_tokens:
            expected = sequence.expected_length
            self.output_tokens += outputs
            self.num_begun += 1
            self.begun_tokens += expected
            insort(self._begun, entry)
        self._pushed[sequence.id] = (rank, arrival, number), likely, expected
        if sequence.residence.parked_tokens:
            self._parked[sequence.id] = sequence
        if (left := sequence.left) is not NOTHING_LEFT:
            self.left_steps += left.steps
            self.left_work += left.work

    def unrank(self, sequences: Iterable[Sequence]) -> None:
        """Have these ranked anew, in this order; those already waiting for it keep their places."""
        unranked = self.unranked
        unranked.update({sequence.id: sequence for sequence in sequences})
        is_all = len(unranked) == len(self._pushed)
        order, begun = self._order, self._begun
        self._order = [] if is_all else [entry for entry in order if entry[3].id not in unranked]
        self._begun = [] if is_all else [entry for entry in begun if entry[3].id not in unranked]
        moved = begun if is_all else [entry for entry in begun if entry[3].id in unranked]
        self._begun_unranked = sorted(self._begun_unranked + moved)
        self.num_changes += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands. Raises LookupError if it is not here."""
        key, likely, expected = self._pushed.pop(sequence.id, (None, 0, 0))
        if key is None:
            raise LookupError(f"sequence {sequence.id} does not wait here")
        self.num -= 1
        self.num_changes += 1
        is_ranked = not self.unranked or self.unranked.pop(sequence.id, None) is None
        if is_ranked:
            del self._order[bisect_left(self._order, key)]
        prompt = sequence.num_prompt_tokens
        self.prompt_tokens -= prompt
        self.likely_tokens -= likely
        self.num_heavy -= likely - prompt > HEAVY_TOKENS
        if outputs := sequence.num_output_tokens:
            self.output_tokens -= outputs
            self.num_begun -= 1
            self.begun_tokens -= expected
            begun = self._begun if is_ranked else self._begun_unranked
            del begun[bisect_left(begun, key)]
        if self._parked:
            self._parked.pop(sequence.id, None)
        if (left := sequence.left) is not NOTHING_LEFT:
            self.left_steps -= left.steps
            self.left_work -= left.work
