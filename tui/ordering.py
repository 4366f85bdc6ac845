"""The choice and order of sequences on the screen: pure."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from daemon.protocol.control import SequenceStatus

_STATE_RANK = {"decode": 0, "prefill": 1, "preempted": 2, "waiting": 3}


def tokens_left(sequence: SequenceStatus) -> float:
    """Output tokens to come by prediction; infinite without one."""
    if sequence.predicted_tokens < 0:
        return math.inf
    return max(0, sequence.predicted_tokens - sequence.num_output_tokens)


SORTS: dict[str, Callable[[SequenceStatus], Any] | None] = {
    "daemon's order": None,
    "oldest first": lambda s: -s.age_s,
    "state": lambda s: (_STATE_RANK.get(s.state, 9), -s.age_s),
    "most blocks": lambda s: -s.num_blocks,
    "most output": lambda s: -s.num_output_tokens,
    "least left": tokens_left,
    "longest prompt": lambda s: -s.num_prompt_tokens,
    "priority": lambda s: (-s.priority, -s.age_s),
    "level": lambda s: (s.level, -s.age_s),
}


def next_sort(name: str) -> str:
    """The order after `name` in the cycle."""
    names = list(SORTS)
    return names[(names.index(name) + 1) % len(names)]


def matches(sequence: SequenceStatus, words: list[str]) -> bool:
    """Whether each word is part of the id, the state, the instance's name, the residency, the
    client's own id or the name of its key.
    """
    text = f"{sequence.sequence} {sequence.state} {sequence.instance} {sequence.residency}"
    text = f"{text} {sequence.request_id} {sequence.key}".lower()
    return all(word in text for word in words)


def arranged(
    sequences: Iterable[SequenceStatus], sort: str, filter_text: str
) -> list[SequenceStatus]:
    """The sequences to show, in order; equal ones keep the daemon's order."""
    words = filter_text.lower().split()
    shown = [sequence for sequence in sequences if matches(sequence, words)]
    key = SORTS[sort]
    return sorted(shown, key=key) if key else shown
