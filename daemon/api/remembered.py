"""What was found out about a text: asked for once, however often one owner asks meanwhile."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")
Ask = Callable[[], Coroutine[Any, Any, Found]]

REFUSED_S = 60.0
"""A refusal is told again for so long: the machine may have been to blame, its memory or disk."""


class _Asked(Generic[Found]):
    """A question on its way, and how many wait for its answer."""

    def __init__(self, task: "asyncio.Task[Found]") -> None:
        self.task = task
        self.num_waiting = 0


class Remembered(Generic[Found]):
    """The newest answers by the text that they are about, and those that are on their way.

    An answer is everybody's, but a question is its owner's: it waits among theirs, and another's
    would wait behind all that they have asked.
    """

    def __init__(self, most: int, keep_s: Callable[[Found], float]) -> None:
        """At most so many answers are kept, each for the seconds that `keep_s` says of it."""
        self._most = most
        self._keep_s = keep_s
        self._known: OrderedDict[bytes, tuple[Found, float]] = OrderedDict()  # until when
        self._asked: dict[tuple[str, bytes], _Asked[Found]] = {}

    async def get(self, text: bytes, owner: str, ask: Ask[Found]) -> Found:
        """What is known of a text, or what `ask` says, which is cancelled if all askers leave."""
        key = blake2b(text, digest_size=16).digest()
        known, until_s = self._known.get(key, (None, 0.0))
        if known is not None and until_s > asyncio.get_running_loop().time():
            self._known.move_to_end(key)
            return known
        asked = self._asked.get((owner, key))
        if asked is None:
            asked = self._asked[owner, key] = _Asked(asyncio.create_task(ask()))
            asked.task.add_done_callback(lambda done: self._answered(key, done))
        asked.num_waiting += 1
        try:
            return await asyncio.shield(asked.task)  # others may wait for the same
        finally:
            asked.num_waiting -= 1
            if not asked.num_waiting:
                asked.task.cancel()
                if self._asked.get((owner, key)) is asked:
                    del self._asked[owner, key]

    def close(self) -> None:
        """Ask no further."""
        for asked in self._asked.values():
            asked.task.cancel()

    def _answered(self, key: bytes, task: "asyncio.Task[Found]") -> None:
        if task.cancelled() or task.exception() is not None:
            return  # whoever waited has seen it; nobody may be left to
        found = task.result()
        keep_s = self._keep_s(found)
        if keep_s > 0:
            self._known[key] = found, task.get_loop().time() + keep_s
            self._known.move_to_end(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
