"""Prompt lookup: what follows a sequence's newest tokens where they stood before, as a draft.

Answers that quote, edit or repeat go on as their source does. Nothing is learned or stored: the
newest tokens that are known are searched each time, which takes microseconds.
"""

from typing import Protocol

import numpy as np

from daemon.protocol.worker import Reply
from daemon.wire.columns import Int32, Int64, int32

MOST_TOKENS = 14
"""Of a draft."""
LEAST_MATCH = 2
"""Tokens that must stand there as they do at the end: one alone says too little of what follows."""
MOST_MATCH = 8
"""Where the longest match is looked for no further."""
GROWTH = 2
"""Tokens of a draft for each token of the match but one."""

MOST_BACK = 2**14
"""Tokens from the end that are searched, so that a look takes no longer than a moment."""
_NONE = int32()


def draft(tokens: Int32, most: int = MOST_TOKENS) -> Int32:
    """At most so many tokens that may follow `tokens` [N]; none where their end is new.

    They are what followed the longest stretch that the end repeats, the latest of such stretches;
    few where it is short, which happens in any text, and more as a quote goes on. Tokens are
    below 0x110000.
    """
    last = tokens.size - 1
    if last < LEAST_MATCH or most <= 0:
        return _NONE
    start = max(0, tokens.size - MOST_BACK)
    # Characters are searched faster than numbers are compared, wherever few are alike.
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
    # The stretch ends where the draft would begin: what follows repeats with it.
    return np.resize(follows, most)


class Offers(Protocol):
    """Who holds the tokens of sequences."""

    def look(self, sequence: int, news: Int32) -> int:
        """How many tokens can be drafted behind these, which come next."""


def offers(store: Offers, sequences: Int64, reply: Reply) -> Int32:
    """How many tokens could be drafted behind what each sampled row [R] of a step has; empty: none.

    `sequences` [R] are those of the rows.
    """
    counts = reply.counts if reply.counts.size else np.ones(reply.reasons.size, np.int32)
    found, at = np.zeros(counts.size, np.int32), 0
    rows = zip(sequences.tolist(), counts.tolist(), reply.reasons.tolist(), strict=True)
    for row, (sequence, count, reason) in enumerate(rows):
        if not reason and count:
            found[row] = store.look(sequence, reply.tokens[at : at + count])
        at += count
    return found if found.any() else _NONE
