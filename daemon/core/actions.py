"""All that the Core can ask its driver to do, in the order in which it asks."""

import msgspec

from daemon.batch import Batch
from daemon.cost.work import StepWork
from daemon.wire.columns import Column


class Submit(msgspec.Struct, frozen=True, tag="Submit", gc=False):
    """Send a step to its instance's worker, after filling in token ids."""

    batch: Batch
    work: StepWork


class Started(msgspec.Struct, frozen=True, tag="Started"):
    """A sequence got its first place in a batch."""

    sequence: int
    instance: int
    num_cached_tokens: int


class Deliver(msgspec.Struct, frozen=True, tag="Deliver", gc=False):
    """Tokens of an answered step that count; rows not named here are dropped.

    A row whose reason is ERROR has no token: its sequence failed.
    """

    instance: int
    step: int
    rows: Column  # int32 [T]: index among the step's sampled rows
    sequences: Column  # int64 [T]
    reasons: Column  # uint8 [T]: FinishReason; not NONE ends the sequence


class Finished(msgspec.Struct, frozen=True, tag="Finished"):
    """A sequence ended without a further token."""

    sequence: int
    reason: int  # FinishReason
    error: str = ""


class Rejected(msgspec.Struct, frozen=True, tag="Rejected"):
    """A request was not taken; nothing of it is kept."""

    request: int
    kind: str  # "queue_full" | "too_long" | "too_many" | "draining" | "not_ready"
    message: str
    retry_after_s: float


class WakeAt(msgspec.Struct, frozen=True, tag="WakeAt"):
    """Send a `Tick` at this time, unless another `WakeAt` replaces it."""

    time_s: float


Action = Submit | Started | Deliver | Finished | Rejected | WakeAt
