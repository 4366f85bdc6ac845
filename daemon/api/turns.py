"""Turns at something that only a few may use at once: nobody's many keep others from theirs."""

import asyncio
from collections import Counter, OrderedDict, deque

from daemon.api.errors import unavailable


class Turns:
    """`at_once` have their turn; who waits is served owner by owner, each owner's in order.

    One owner never has every turn, so that another's first request waits for nobody's slow ones.
    """

    def __init__(self, at_once: int, most_waiting: int) -> None:
        """Beyond `most_waiting` of one owner, the next is refused."""
        self._at_once = at_once
        self._most_of_one = max(1, at_once - 1)
        self._most_waiting = most_waiting
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, owner: str) -> None:
        """Wait for a turn, which `give_back` ends. Raises ApiError 503."""
        if owner not in self._waiting and self._may_have(owner):
            self._taken[owner] += 1
            return
        queue = self._waiting.setdefault(owner, deque())
        if len(queue) >= self._most_waiting:
            raise unavailable("too many requests of yours wait to be read", "too_many_waiting")
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had come already
                self.give_back(owner)
            else:
                self._leave(owner, turn)
            raise

    def give_back(self, owner: str) -> None:
        """The turn is over; the next ones begin."""
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        while (following := self._next()) is not None:
            queue = self._waiting[following]
            turn = queue.popleft()
            if queue:
                self._waiting.move_to_end(following)
            else:
                del self._waiting[following]
            if not turn.cancelled():  # who waited has left, and is about to hear of it
                self._taken[following] += 1
                turn.set_result(None)

    def _next(self) -> str | None:
        return next((owner for owner in self._waiting if self._may_have(owner)), None)

    def _may_have(self, owner: str) -> bool:
        return self._taken.total() < self._at_once and self._taken[owner] < self._most_of_one

    def _leave(self, owner: str, turn: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(owner, ())
        if turn in queue:
            self._waiting[owner].remove(turn)
            if not self._waiting[owner]:
                del self._waiting[owner]
