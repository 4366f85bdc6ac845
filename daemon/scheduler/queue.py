"""Sequences that wait for an instance, in the policy's order."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from daemon.sequence import Sequence

Place = tuple[float, int]


class WaitingQueue:
    """A list kept sorted by place: rank, then arrival.

    The place is the one that a sequence had when it was pushed, however its rank changes then. A
    rank that is not a number comes last.
    """

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._places: list[Place] = []  # of these
        self._place: dict[int, Place] = {}  # likewise, by sequence
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
        """Insert by place. Raises ValueError for one that is here."""
        if sequence.id in self._place:
            raise ValueError(f"sequence {sequence.id} waits here already")
        rank, arrival = sequence.place
        place = (rank if rank == rank else float("inf"), arrival)
        index = bisect_right(self._places, place)
        self._sequences.insert(index, sequence)
        self._places.insert(index, place)
        self._place[sequence.id] = place
        self.num_tokens += sequence.num_known_tokens

    def take_all(self) -> list[Sequence]:
        """Empty the queue."""
        taken, self._sequences, self.num_tokens = self._sequences, [], 0
        self._places.clear()
        self._place.clear()
        return taken

    def remove(self, sequence: Sequence) -> None:
        """Take one out, wherever it stands. Raises LookupError if it is not here."""
        place = self._place.get(sequence.id)
        index = len(self._places) if place is None else bisect_left(self._places, place)
        while index < len(self._places) and self._places[index] == place:
            if self._sequences[index] is sequence:
                del self._sequences[index], self._places[index], self._place[sequence.id]
                self.num_tokens -= sequence.num_known_tokens
                return
            index += 1
        raise LookupError(f"sequence {sequence.id} does not wait here")
