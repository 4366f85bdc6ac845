"""Pauses: an answer that has begun and does not go on; causes, counts and lengths.

A preempted sequence pauses from then until its next token. A running one pauses behind a prompt:
where prompt tokens were computed between two of its tokens, and the gap is over PAUSE_TIMES a step
of the decodes alone and over MIN_PAUSE_S. That step's time is not of the pause.
"""

from bisect import bisect_left
from enum import IntEnum

import msgspec

PAUSE_TIMES = 4.0
"""A gap longer than this many usual ones is a pause."""

MIN_PAUSE_S = 0.1
"""A shorter gap is no pause, however short the others are: it is not visible."""

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Upper bounds of the buckets of lengths; longer pauses are one more bucket."""


class Cause(IntEnum):
    """Why a sequence that had delivered a token did not run."""

    SWAPPED = 0  # preempted; host memory kept at least a part of its KV
    RECOMPUTED = 1  # preempted; nothing was kept
    BEHIND_PROMPT = 2  # it ran, and the steps computed prompts
    WORKER_LOST = 3
    MOVED = 4  # it went to another instance, with its KV or without


def cause_of(num_kept_tokens: int, is_lost: bool) -> Cause:
    """The cause of a preempted sequence's pause; `is_lost`: its worker is gone."""
    if is_lost:
        return Cause.WORKER_LOST
    return Cause.SWAPPED if num_kept_tokens else Cause.RECOMPUTED


class Pauses(msgspec.Struct, frozen=True, array_like=True):
    """The pauses of one cause."""

    count: int = 0
    sum_s: float = 0.0
    by_length: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)  # counts by BOUNDS_S

    def and_(self, length_s: float, num: int = 1) -> "Pauses":
        """These pauses and `num` more, each of `length_s`."""
        place = bisect_left(BOUNDS_S, length_s)
        lengths = self.by_length
        lengths = (*lengths[:place], lengths[place] + num, *lengths[place + 1 :])
        return Pauses(self.count + num, self.sum_s + num * length_s, lengths)


NO_PAUSES = (Pauses(),) * len(Cause)
"""No pause yet, for each cause by its number."""


def one_more(
    pauses: tuple[Pauses, ...], cause: Cause, length_s: float, num: int = 1
) -> tuple[Pauses, ...]:
    """The pauses of every cause, with `num` more of one, each of `length_s`."""
    return (*pauses[:cause], pauses[cause].and_(length_s, num), *pauses[cause + 1 :])
