"""Prompt lookup: draft the tokens that followed the newest tokens where these stood before.

Answers that quote, edit or repeat go on as their source does. Nothing is learned or stored: the
newest known tokens are searched for each time, which takes microseconds.
"""

from typing import Protocol

import numpy as np

from daemon.protocol.worker import Reply
from daemon.wire.columns import Int32, Int64, int32

MOST_TOKENS = 14
"""Tokens of a draft at most."""
LEAST_MATCH = 2
"""Shortest match, in tokens: a single one says too little about what follows."""
MOST_MATCH = 8
"""Longest match that is looked for."""
GROWTH = 2
"""Tokens of a draft per token of the match beyond the first."""

MOST_BACK = 2**14
"""Tokens from the end that are searched, which bounds a lookup's time."""
_NONE = int32()


def draft(tokens: Int32, most: int = MOST_TOKENS) -> Int32:
    """At most `most` tokens that may follow `tokens` [N]; empty where their end is new.

    They are what followed the longest stretch that the end repeats, the latest of equal ones. A
    short match gives few, since it happens in any text; a quote that goes on gives more. Tokens
    are below 0x110000.
    """
    last = tokens.size - 1
    if last < LEAST_MATCH or most <= 0:
        return _NONE
    start = max(0, tokens.size - MOST_BACK)
    # Searching characters is faster than comparing numbers, wherever few are alike.
    known = tokens[start:].tobytes().decode("utf-32-le", "surrogatepass")
    last = len(known) - 1
    length, at = LEAST_MATCH, known.rfind(known[-LEAST_MATCH:], 0, last)
    while at >= 0 and length < MOST_MATCH:
        if at > 0 and known[at - 1] == known[last - length]:
            longer = at - 1
        elif (longer := known.rfind(known[-length - 1 :], 0, last)) < 0:
            break
        length, at = length + 1, longer
    if at < 0:
        return _NONE
    first, most = start + at + length, min(most, GROWTH * (length - 1))
    follows = tokens[first : first + most]
    if follows.size == most or follows.size == 0:
        return follows
    # The stretch ends where the draft begins: what follows repeats with it.
    return np.resize(follows, most)


class Offers(Protocol):
    """The holder of the sequences' tokens."""

    def look(self, sequence: int, news: Int32) -> int:
        """How many tokens can be drafted after `news`, which come next."""


def offers(store: Offers, sequences: Int64, reply: Reply) -> Int32:
    """How many tokens could be drafted after each sampled row [R] of a step; empty: none at all.

    `sequences` [R] are the rows'.
    """
    counts = reply.counts if reply.counts.size else np.ones(reply.reasons.size, np.int32)
    found, at = np.zeros(counts.size, np.int32), 0
    rows = zip(sequences.tolist(), counts.tolist(), reply.reasons.tolist(), strict=True)
    for row, (sequence, count, reason) in enumerate(rows):
        if not reason and count:
            found[row] = store.look(sequence, reply.tokens[at : at + count])
        at += count
    return found if found.any() else _NONE
