"""Prompt lookup: what follows a sequence's newest tokens where they stood before, as a draft.

Answers that quote, edit or repeat go on as their source does. Nothing is learned or stored: the
tokens that are known are searched each time, which takes some microseconds for thousands of them.
"""

from typing import Protocol

import numpy as np

from daemon.protocol.worker import Reply
from daemon.scheduler.in_flight import InFlightStep
from daemon.wire.columns import Int32, int32

MOST_TOKENS = 14
"""Of a draft."""
LEAST_MATCH = 2
"""Tokens that must stand there as they do at the end: one alone says too little of what follows."""
MOST_MATCH = 8
"""Where the longest match is looked for no further."""
GROWTH = 2
"""Tokens of a draft for each token of the match but one."""

_TOKEN_BYTES = 4
_NONE = int32()


def draft(tokens: Int32, most: int = MOST_TOKENS) -> Int32:
    """At most so many tokens that may follow `tokens` [N]; none where their end is new.

    They are what followed the longest stretch that the end repeats, the latest of such stretches;
    few where it is short, which happens in any text, and more as a quote goes on.
    """
    last = tokens.size - 1
    if last < LEAST_MATCH or most <= 0:
        return _NONE
    known = tokens.tobytes()  # for so few numbers bytes are searched faster than arrays compared
    length, at = LEAST_MATCH, _latest(known, LEAST_MATCH, last)
    while at >= 0 and length < MOST_MATCH:
        if at > 0 and _token(known, at - 1) == _token(known, last - length):
            longer = at - 1
        elif (longer := _latest(known, length + 1, last)) < 0:
            break
        length, at = length + 1, longer
    if at < 0:
        return _NONE
    first, most = at + length, min(most, GROWTH * (length - 1))
    follows = tokens[first : first + most]
    if follows.size == most or follows.size == 0:
        return follows
    # The stretch ends where the draft would begin: what follows repeats with it.
    return np.resize(follows, most)


def _latest(known: bytes, length: int, last: int) -> int:
    """Where the latest stretch before token `last` begins that is as the last `length` are; or -1.

    Two of one length begin in the order in which they end.
    """
    stretch = known[-_TOKEN_BYTES * length :]
    at = known.rfind(stretch, 0, _TOKEN_BYTES * last)
    while at > 0 and at % _TOKEN_BYTES:  # of parts of tokens
        at = known.rfind(stretch, 0, at + len(stretch) - 1)
    return at // _TOKEN_BYTES


def _token(known: bytes, index: int) -> bytes:
    return known[_TOKEN_BYTES * index : _TOKEN_BYTES * (index + 1)]


class Offers(Protocol):
    """Who holds the tokens of sequences."""

    def look(self, sequence: int, news: Int32) -> int:
        """How many tokens can be drafted behind these, which come next."""


def offers(store: Offers, flown: InFlightStep, reply: Reply) -> Int32:
    """How many tokens could be drafted behind what each row [R] of a step drew; empty: none."""
    counts = reply.counts if reply.counts.size else np.ones(reply.reasons.size, np.int32)
    found, at = np.zeros(counts.size, np.int32), 0
    rows = zip(flown.sequences.tolist(), counts.tolist(), reply.reasons.tolist(), strict=True)
    for row, (sequence, count, reason) in enumerate(rows):
        if not reason and count:
            found[row] = store.look(sequence, reply.tokens[at : at + count])
        at += count
    return found if found.any() else _NONE
