"""A cache of answers about texts; concurrent questions of one owner about a text are asked once."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")
Ask = Callable[[], Coroutine[Any, Any, Found]]

REFUSED_S = 60.0
"""Time that a refusal is kept: its cause may have been this machine's memory or disk."""


class _Question(Generic[Found]):
    """A question in progress, and the number of callers that wait for its answer."""

    def __init__(self, task: "asyncio.Task[Found]") -> None:
        self.task = task
        self.num_waiting = 0


class AnswerCache(Generic[Found]):
    """The newest answers by text, and the questions in progress.

    An answer is shared, but a question belongs to its owner: it waits in the owner's queue, and
    another owner must not wait there.
    """

    def __init__(self, most: int, keep_s: Callable[[Found], float]) -> None:
        """Keep at most `most` answers, each for the seconds that `keep_s` returns for it."""
        self._most = most
        self._keep_s = keep_s
        self._known: OrderedDict[bytes, tuple[Found, float]] = OrderedDict()  # until when
        self._questions: dict[tuple[str, bytes], _Question[Found]] = {}

    async def get(self, text: bytes, owner: str, ask: Ask[Found]) -> Found:
        """The cached answer, or else that of `ask`, which is cancelled if all callers leave."""
        key = blake2b(text, digest_size=16).digest()
        known, until_s = self._known.get(key, (None, 0.0))
        if known is not None and until_s > asyncio.get_running_loop().time():
            self._known.move_to_end(key)
            return known
        question = self._questions.get((owner, key))
        if question is None:
            question = self._questions[owner, key] = _Question(asyncio.create_task(ask()))
            question.task.add_done_callback(lambda done: self._answered(key, done))
        question.num_waiting += 1
        try:
            return await asyncio.shield(question.task)  # others may wait for the same
        finally:
            question.num_waiting -= 1
            if not question.num_waiting:
                question.task.cancel()
                if self._questions.get((owner, key)) is question:
                    del self._questions[owner, key]

    def close(self) -> None:
        """Cancel all questions."""
        for question in self._questions.values():
            question.task.cancel()

    def _answered(self, key: bytes, task: "asyncio.Task[Found]") -> None:
        if task.cancelled() or task.exception() is not None:
            return  # those who waited have seen it
        found = task.result()
        keep_s = self._keep_s(found)
        if keep_s > 0:
            self._known[key] = found, task.get_loop().time() + keep_s
            self._known.move_to_end(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
