"""What was found out about a text: asked for once, however many ask at the same time."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")
Ask = Callable[[], Coroutine[Any, Any, Found]]


class Remembered(Generic[Found]):
    """The newest answers by the text that they are about, and those that are on their way."""

    def __init__(self, most: int, worth: Callable[[Found], bool]) -> None:
        """At most so many answers are kept, of those that are `worth` it."""
        self._most = most
        self._worth = worth
        self._known: OrderedDict[bytes, Found] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[Found]] = {}

    async def get(self, text: bytes, ask: Ask[Found]) -> Found:
        """What is known of a text, or what `ask` says, which goes on if this asker leaves."""
        key = blake2b(text, digest_size=16).digest()
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._answered(key, done))
        # Others may wait for the same: one who leaves takes nothing from them.
        return await asyncio.shield(task)

    def clear(self) -> None:
        """Forget all that is known."""
        self._known.clear()

    def close(self) -> None:
        """Ask no further."""
        for task in self._asked.values():
            task.cancel()

    @property
    def num_asked(self) -> int:
        """Texts whose answers are on their way."""
        return len(self._asked)

    @property
    def num_known(self) -> int:
        """Answers that are kept."""
        return len(self._known)

    def _answered(self, key: bytes, task: "asyncio.Task[Found]") -> None:
        del self._asked[key]
        if task.cancelled() or task.exception() is not None:
            return  # whoever waited has seen it; nobody may be left to
        found = task.result()
        if self._worth(found):
            self._known[key] = found
            if len(self._known) > self._most:
                self._known.popitem(last=False)
