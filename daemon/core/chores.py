"""Chores: what a rare event asks of thousands of sequences, done a few at a time."""

from collections import deque
from collections.abc import Callable, Iterable

from daemon.state.sequence import Sequence

AT_ONCE = 128
"""So many sequences are taken with the event that asks for it: of fewer nothing is put off."""
LATER = 16
"""So many with each event after that. While any are left, the driver sends a tick at once."""

Do = Callable[[Sequence, float], None]


class Chores:
    """What is still to be done, in the order in which it was asked for. Each is told the time at
    which its turn comes, and has to see for itself whether its sequence is still as it was.
    """

    def __init__(self) -> None:
        self.left: deque[tuple[Do, Sequence]] = deque()

    def add(self, do: Do, sequences: Iterable[Sequence], now: float) -> None:
        """Do something with each of these, with the first of them at once."""
        is_first = not self.left
        self.left.extend((do, one) for one in sequences)
        if is_first:
            self.go_on(now, AT_ONCE)

    def go_on(self, now: float, most: int = LATER) -> None:
        """Do so many of those that are left."""
        left = self.left
        for _ in range(min(most, len(left))):
            do, sequence = left.popleft()
            do(sequence, now)
