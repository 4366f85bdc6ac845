"""Chores: work of a rare event on thousands of sequences, done a few at a time."""

from collections import deque
from collections.abc import Callable, Iterable

from daemon.state.sequence import Sequence

AT_ONCE = 128
"""Sequences that are taken with the event itself: with fewer nothing is deferred."""
LATER = 16
"""Sequences taken with each later event. While any are left, the driver sends a tick at once."""

Do = Callable[[Sequence, float], None]


class Chores:
    """The chores left, in the order in which they were added. Each gets the time at which it is
    done, and checks for itself whether its sequence is still as it was.
    """

    def __init__(self) -> None:
        self.left: deque[tuple[Do, Sequence]] = deque()

    def add(self, do: Do, sequences: Iterable[Sequence], now: float) -> None:
        """Do something with each of these sequences, with the first at once."""
        is_first = not self.left
        self.left.extend((do, sequence) for sequence in sequences)
        if is_first:
            self.go_on(now, AT_ONCE)

    def go_on(self, now: float, most: int = LATER) -> None:
        """Do at most `most` of the chores left."""
        left = self.left
        for _ in range(min(most, len(left))):
            do, sequence = left.popleft()
            do(sequence, now)
