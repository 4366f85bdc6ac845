"""Errors that prevent a run, and the counts of errors within a run."""

import re
from collections import Counter
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<!HTTP )(?<![\d.])\d+(\.\d+)?")
SHOWN_LETTERS = 300


class BenchError(Exception):
    """The endpoint cannot be measured; the message says why."""


def error_lines(texts: Iterable[str]) -> list[str]:
    """`12 x first such text`, the most frequent first; empty texts are no errors.

    Texts that differ in numbers alone count as one. HTTP's status is kept apart.
    """
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for text in filter(None, (" ".join(text.split())[:SHOWN_LETTERS] for text in texts)):
        key = _NUMBER.sub("0", text)
        counts[key] += 1
        first.setdefault(key, text)
    return [f"{count} x {first[key]}" for key, count in counts.most_common()]
