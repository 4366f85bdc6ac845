"""What came of a step, once its worker has answered."""

import msgspec

from daemon.cost.work import StepWork
from daemon.request import FinishReason
from daemon.sequence import Sequence
from daemon.wire.columns import Int32, Int64, UInt8


class Answer(msgspec.Struct, frozen=True):
    """What came of an answered step; T rows that count."""

    rows: Int32  # [T] among the step's sampled rows
    sequences: Int64  # [T]
    reasons: UInt8  # [T] FinishReason; ERROR: the row failed, and has no token
    first: list[Sequence]  # those whose first token this was
    ended: list[Sequence]
    causes: list[int]  # FinishReason of each that ended
    work: StepWork

    @property
    def num_failed(self) -> int:
        """Rows that failed."""
        return self.causes.count(FinishReason.ERROR)
