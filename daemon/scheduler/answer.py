"""What came of a step, once its worker has answered."""

import msgspec

from daemon.cost.work import StepWork
from daemon.sequence import Sequence
from daemon.wire.columns import Int32, Int64, UInt8


class Answer(msgspec.Struct, frozen=True):
    """What came of an answered step; T rows that count."""

    rows: Int32  # [T] among the step's sampled rows
    sequences: Int64  # [T]
    reasons: UInt8  # [T] FinishReason
    first: list[Sequence]  # those whose first token this was
    ended: list[Sequence]
    causes: list[int]  # FinishReason of each that ended
    work: StepWork
