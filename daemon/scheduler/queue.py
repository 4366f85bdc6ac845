"""The waiting queue of one instance, in the policy's order."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from daemon.scheduler.load_sums import LoadSums
from daemon.sequence import Sequence
from daemon.wire.columns import Int32, int32

OrderKey = tuple[float, int]  # (rank, arrival)


class WaitingQueue:
    """A list kept sorted by the key that each sequence had when it was pushed.

    A rank that changes later does not move its sequence. A rank that is not a number comes last.
    """

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._keys: list[OrderKey] = []  # of these
        self._key: dict[int, OrderKey] = {}  # likewise, by sequence id
        self._known: list[int] = []  # their known tokens, and likely lengths
        self._likely: list[int] = []
        self.sums = LoadSums()
        self.num_tokens = 0  # known tokens of all that wait
        self.num_begun = 0  # of them, those that have delivered a token
        self.left_steps = self.left_work = 0  # of all that wait; see `Left`
        self.num_changes = 0  # so often one came, or went

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def at(self, place: int) -> Sequence:
        """The one with so many before it."""
        return self._sequences[place]

    @property
    def first(self) -> Sequence:
        """The next sequence to run."""
        return self._sequences[0]

    def columns(self, most: int) -> tuple[Int32, Int32]:
        """(known tokens, likely lengths) of the first `most`, in order."""
        return int32(self._known[:most]), int32(self._likely[:most])

    def push(self, sequence: Sequence) -> None:
        """Insert by its key. Raises ValueError for one that is here."""
        if sequence.id in self._key:
            raise ValueError(f"sequence {sequence.id} waits here already")
        rank, arrival = sequence.order_key
        key = (rank if rank == rank else float("inf"), arrival)
        index = bisect_right(self._keys, key)
        self._sequences.insert(index, sequence)
        self._keys.insert(index, key)
        self._key[sequence.id] = key
        self.num_changes += 1
        likely = sequence.likely_length
        self._known.insert(index, sequence.num_known_tokens)
        self._likely.insert(index, likely)
        self.sums.add(sequence.num_prompt_tokens, likely)
        self.num_tokens += sequence.num_known_tokens
        self.num_begun += sequence.num_output_tokens > 0
        self.left_steps += sequence.left.steps
        self.left_work += sequence.left.work

    def take_all(self) -> list[Sequence]:
        """Empty the queue."""
        taken, self._sequences = self._sequences, []
        self.num_changes += 1
        self.num_tokens = self.num_begun = self.left_steps = self.left_work = 0
        self._keys.clear()
        self._known.clear()
        self._likely.clear()
        self.sums = LoadSums()
        self._key.clear()
        return taken

    def remove(self, sequence: Sequence) -> None:
        """Take one out, wherever it stands. Raises LookupError if it is not here."""
        key = self._key.get(sequence.id)
        index = len(self._keys) if key is None else bisect_left(self._keys, key)
        while index < len(self._keys) and self._keys[index] == key:
            if self._sequences[index] is sequence:
                self.num_changes += 1
                del self._sequences[index], self._keys[index], self._key[sequence.id]
                self.sums.remove(sequence.num_prompt_tokens, self._likely[index])
                del self._known[index], self._likely[index]
                self.num_tokens -= sequence.num_known_tokens
                self.num_begun -= sequence.num_output_tokens > 0
                self.left_steps -= sequence.left.steps
                self.left_work -= sequence.left.work
                return
            index += 1
        raise LookupError(f"sequence {sequence.id} does not wait here")
