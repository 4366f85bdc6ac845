"""The control socket's messages, and the immutable snapshot that every viewer reads."""

import msgspec

from daemon.core.snapshot import Counters, InstanceStatus, SequenceStatus
from daemon.memory.block_pool import BlockUse

__all__ = [
    "FRAME_LIMIT_BYTES",
    "BlockUse",
    "ChoosePolicy",
    "Counters",
    "FromViewer",
    "InstanceStatus",
    "PredictorStatus",
    "Refused",
    "SequenceStatus",
    "Snapshot",
    "Status",
    "ToViewer",
    "Watch",
]

FRAME_LIMIT_BYTES = 1 << 20


class Status(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for one `Snapshot`."""


class Watch(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for a `Snapshot` now and then every `interval_s` (0.2 .. 60), until the socket closes."""

    interval_s: float = 0.5


class ChoosePolicy(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank sequences by another policy from now on; the answer is a `Snapshot` made after that."""

    policy: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The message was not understood or not allowed."""

    message: str


class PredictorStatus(msgspec.Struct, frozen=True):
    """How the predictor process does. Counts and sums are those of one life of the API process."""

    kind: str = "none"
    up: bool = False  # the process lives
    asks: int = 0  # requests that were to be predicted
    dropped: int = 0  # of them, those that ended first, waited too long or were lost
    answers: int = 0
    took_sum_s: float = 0.0  # of the process's time, over all that it answered


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """All that a viewer sees, at one moment; never changed after it was made."""

    version: str
    pid: int
    uptime_s: float
    time_s: float  # the daemon's monotonic clock, for rates
    status: str  # "loading weights 40 %", "ready", "draining", ...
    ready: bool
    draining: bool
    url: str  # of the HTTP API
    model: str
    root: str
    context_len: int
    max_len: int
    block_size: int
    instances: tuple[InstanceStatus, ...]
    sequences: tuple[SequenceStatus, ...]
    running: int  # totals, also where `sequences` is cut
    waiting: int
    counters: Counters
    predictor: PredictorStatus = PredictorStatus()


FromViewer = Status | Watch | ChoosePolicy
ToViewer = Snapshot | Refused
