"""The story of a sequence: a bounded list of marks with times, for people who ask why."""

from typing import Any

MAX_MARKS = 64
"""Most marks kept of a sequence; a longer story keeps its first half and its newest marks."""


_FULL = 4 * MAX_MARKS
"""A mark has four entries in the list."""

MAX_ENDED = 64
"""Most ended sequences whose stories are kept: the newest."""


class What:
    """The kinds of marks; the comments say what `amount` and `other` mean."""

    ARRIVED = "arrived"  # amount: prompt tokens
    HELD_BACK = "held back"  # other: the stream whose prompt it will share (n > 1)
    QUEUED = "queued"  # amount: the instance's index
    MOVED = "moved"  # from one queue to another; amount: the instance that it left
    LEFT = "left"  # for the instance `other`; amount: tokens whose KV it takes along
    LANDED = "landed"  # that KV is there; amount: its tokens
    SENT_AHEAD = "sent ahead"  # while it runs on; amount: blocks; other: the instance's index
    PREDICTED = "predicted"  # amount: output tokens
    ADMITTED = "admitted"  # amount: prompt tokens found in the prefix cache
    SHARED = "shared"  # admitted; amount: tokens shared with the stream `other`
    FETCHED = "fetched"  # admitted; amount: tokens whose KV comes back from host memory
    FOLLOWED = "followed"  # admitted; amount: tokens whose KV comes from the instance `other`
    RESTORED = "restored"  # that KV is there
    CHUNK = "chunk"  # amount: prompt or recomputed tokens of a step
    FIRST = "first token"
    PROMOTED = "promoted"  # amount: its level from now on
    DEMOTED = "demoted"  # likewise
    GAVE_WAY = "gave way"  # preempted by the sequence `other`; amount: tokens whose KV is kept
    OUT_OF_BLOCKS = "out of blocks"  # preempted for a block that `other` needs; amount: likewise
    RESUMED = "resumed"  # after a pause; amount: its milliseconds; other: `pause.Cause`
    WORKER_LOST = "worker lost"  # it waits again, and is computed again
    FINISHED = "finished"  # amount: output tokens; other: FinishReason


class MarkList:
    """Marks of one sequence, oldest first.

    They lie in one flat list, so that the garbage collector has no further object for each.
    """

    __slots__ = ("_flat", "num_dropped")

    def __init__(self) -> None:
        self._flat: list[Any] = []
        self.num_dropped = 0  # from the middle

    @property
    def marks(self) -> list[tuple[float, str, int, int]]:
        """(time_s, what, amount, other) of each mark."""
        flat = self._flat
        return list(zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True))

    def add(self, time_s: float, what: str, amount: int = 0, other: int = -1) -> None:
        """Add a mark; beyond MAX_MARKS the oldest of the second half is dropped."""
        flat = self._flat
        if len(flat) == _FULL:
            del flat[2 * MAX_MARKS : 2 * MAX_MARKS + 4]
            self.num_dropped += 1
        flat += (time_s, what, amount, other)
