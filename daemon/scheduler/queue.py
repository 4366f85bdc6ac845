"""Sequences that wait for an instance, in the policy's order."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from daemon.sequence import Sequence


def _rank(sequence: Sequence) -> int:
    return sequence.rank


class WaitingQueue:
    """A list kept sorted by rank; equal ranks keep their order of insertion."""

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
        """Insert by rank."""
        insort(self._sequences, sequence, key=_rank)
        self.num_tokens += sequence.num_known_tokens

    def remove(self, sequence: Sequence) -> None:
        """Take one out, wherever it stands."""
        index = bisect_left(self._sequences, sequence.rank, key=_rank)
        while self._sequences[index] is not sequence:
            index += 1
        del self._sequences[index]
        self.num_tokens -= sequence.num_known_tokens
