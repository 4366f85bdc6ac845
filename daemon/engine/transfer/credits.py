"""Flow control: the slots and blocks that the sender may write."""

import threading
from collections import deque


class AbandonedError(Exception):
    """The other end is gone: no room will be made any more."""


class RingCredits:
    """Slots 0 .. count - 1 of a ring; the one free for longest is taken first."""

    def __init__(self, count: int) -> None:
        self._free = deque(range(count))
        self._taken: set[int] = set()
        self._changed = threading.Condition()
        self._abandoned = False

    def take(self) -> int:
        """A free slot; waits for one. Raises AbandonedError."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._abandoned)
            if self._abandoned:
                raise AbandonedError
            slot = self._free.popleft()
            self._taken.add(slot)
            return slot

    def give(self, slot: int) -> None:
        """Free a slot. Raises ValueError if it was not taken."""
        with self._changed:
            if slot not in self._taken:
                raise ValueError(f"slot {slot} was not taken")
            self._taken.remove(slot)
            self._free.append(slot)
            self._changed.notify()

    def abandon(self) -> None:
        """Raise an error in every thread that waits, now or later."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()


class Clearances:
    """Transfers whose target blocks may be written."""

    def __init__(self) -> None:
        self._cleared: dict[int, bool] = {}  # of those that were asked for
        self._changed = threading.Condition()
        self._abandoned = False

    def ask(self, transfer: int) -> None:
        """Register a transfer that needs clearance, until it is forgotten."""
        with self._changed:
            self._cleared[transfer] = False

    def wait(self, transfer: int) -> None:
        """Return once a transfer is cleared. Raises AbandonedError."""
        with self._changed:
            self._changed.wait_for(lambda: self._cleared[transfer] or self._abandoned)
            if self._abandoned:
                raise AbandonedError

    def give(self, transfer: int) -> None:
        """Clear a transfer: its blocks may be written. No effect where it was forgotten."""
        with self._changed:
            if transfer in self._cleared:
                self._cleared[transfer] = True
                self._changed.notify_all()

    def forget(self, transfer: int) -> None:
        """A transfer is over."""
        with self._changed:
            self._cleared.pop(transfer, None)

    def abandon(self) -> None:
        """Raise an error in every thread that waits, now or later."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
