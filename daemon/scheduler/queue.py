"""Sequences that wait for an instance, in the policy's order."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from daemon.sequence import Sequence

_PLACE = attrgetter("place")


class WaitingQueue:
    """A list kept sorted by place, which is unique: rank, then arrival."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self.num_tokens = 0  # known tokens of all that wait

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def first(self) -> Sequence:
        """The next sequence to run."""
        return self._sequences[0]

    def push(self, sequence: Sequence) -> None:
        """Insert by place."""
        insort(self._sequences, sequence, key=_PLACE)
        self.num_tokens += sequence.num_known_tokens

    def take_all(self) -> list[Sequence]:
        """Empty the queue."""
        taken, self._sequences, self.num_tokens = self._sequences, [], 0
        return taken

    def remove(self, sequence: Sequence) -> None:
        """Take one out, wherever it stands."""
        del self._sequences[bisect_left(self._sequences, sequence.place, key=_PLACE)]
        self.num_tokens -= sequence.num_known_tokens
