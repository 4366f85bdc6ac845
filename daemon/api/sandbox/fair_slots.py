"""A fair semaphore: round-robin over owners, so that none starves the rest."""

import asyncio
from collections import Counter, OrderedDict, deque

from daemon.api.replies.errors import unavailable


class FairSlots:
    """A semaphore of `at_once` slots, granted round-robin over owners, each owner's in order.

    One owner never gets all slots, so that another's first request does not wait for slow ones.
    """

    def __init__(self, at_once: int, most_waiting: int) -> None:
        """At most `most_waiting` calls of one owner wait; the next is refused."""
        self._at_once = at_once
        self._most_of_one = max(1, at_once - 1)
        self._most_waiting = most_waiting
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, owner: str) -> None:
        """Wait for a slot, to be returned by `release`. Raises ApiError 503."""
        if owner not in self._waiting and self._may_have(owner):
            self._taken[owner] += 1
            return
        queue = self._waiting.setdefault(owner, deque())
        if len(queue) >= self._most_waiting:
            raise unavailable("too many requests of yours wait to be read", "too_many_waiting")
        slot = asyncio.get_running_loop().create_future()
        queue.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():  # it was granted already
                self.release(owner)
            else:
                self._leave(owner, slot)
            raise

    def release(self, owner: str) -> None:
        """Return a slot, and grant free ones to waiting owners."""
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        while (following := self._next()) is not None:
            queue = self._waiting[following]
            slot = queue.popleft()
            if queue:
                self._waiting.move_to_end(following)
            else:
                del self._waiting[following]
            if not slot.cancelled():  # else its caller has left and will be resumed
                self._taken[following] += 1
                slot.set_result(None)

    def _next(self) -> str | None:
        return next((owner for owner in self._waiting if self._may_have(owner)), None)

    def _may_have(self, owner: str) -> bool:
        return self._taken.total() < self._at_once and self._taken[owner] < self._most_of_one

    def _leave(self, owner: str, slot: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(owner, ())
        if slot in queue:
            self._waiting[owner].remove(slot)
            if not self._waiting[owner]:
                del self._waiting[owner]
