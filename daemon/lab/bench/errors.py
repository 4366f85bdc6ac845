"""What goes wrong before a run can begin, and the counts of what went wrong within one."""

import re
from collections import Counter

_NUMBER = re.compile(r"(?<!HTTP )(?<![\d.])\d+(\.\d+)?")
SHOWN_LETTERS = 300


class BenchError(Exception):
    """The endpoint cannot be measured; the message says why."""


class ErrorCounts:
    """How often each error text came; texts that differ in numbers alone count as one.

    HTTP's status is kept apart.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, text: str) -> None:
        """Count one error."""
        text = " ".join(text.split())[:SHOWN_LETTERS]
        key = _NUMBER.sub("0", text)
        self._counts[key] += 1
        self._first.setdefault(key, text)

    def lines(self) -> list[str]:
        """`12 x first such text`, the most frequent first."""
        return [f"{count} x {self._first[key]}" for key, count in self._counts.most_common()]
