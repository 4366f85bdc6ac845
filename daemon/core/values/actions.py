"""The Core's output actions; a driver carries them out in the order of their list."""

import msgspec

from daemon.cost.work import StepWork
from daemon.state.batch import Batch
from daemon.state.role import Role
from daemon.wire.columns import Column


class Submit(msgspec.Struct, frozen=True, tag="Submit", gc=False):
    """A step for its instance's worker; the driver adds the token ids and sends it."""

    batch: Batch
    work: StepWork
    sequences: Column  # int64 [R]: of the sampled rows


class Started(msgspec.Struct, frozen=True, tag="Started"):
    """A sequence was admitted for the first time."""

    sequence: int
    instance: int
    num_cached_tokens: int


class Deliver(msgspec.Struct, frozen=True, tag="Deliver", gc=False):
    """Tokens of an answered step that count; others are dropped.

    Of a sequence's tokens the last one has the reason. Where that is ERROR it is no token: the
    sequence failed.
    """

    instance: int
    step: int
    rows: Column  # int32 [T]: index among the step's sampled tokens
    sequences: Column  # int64 [T]; tokens of one sequence follow each other
    reasons: Column  # uint8 [T]: FinishReason; not NONE ends the sequence


class Finished(msgspec.Struct, frozen=True, tag="Finished"):
    """A sequence ended without a further token."""

    sequence: int
    reason: int  # FinishReason
    error: str = ""


class Rejected(msgspec.Struct, frozen=True, tag="Rejected"):
    """A request was refused; the Core keeps nothing of it."""

    request: int
    kind: str  # "queue_full" | "too_long" | "too_many" | "draining" | "not_ready"
    message: str
    retry_after_s: float


class WakeAt(msgspec.Struct, frozen=True, tag="WakeAt"):
    """A request for a `Tick` at this time; a later `WakeAt` replaces it."""

    time_s: float


class Send(msgspec.Struct, frozen=True, tag="Send"):
    """Send blocks from one instance's pool to another's, once the plans before are computed.

    Both ends answer with `TransferEnded`. `layered`: the following plan computes the missing part
    of these blocks, and each layer goes as soon as that step has computed it. `at_once`: answered
    steps computed all of it, so it waits for no plan.
    """

    transfer: int  # a number that is never used again
    source: int
    target: int
    blocks: Column  # int32 [n] of the source's KV pool, or of its host pool
    targets: Column  # int32 [n] of the target's KV pool
    num_tokens: int  # in these blocks: all but the last of each group of layers are full
    from_host: bool = False
    layered: bool = False
    at_once: bool = False
    num_groups: int = 1  # the last so many blocks have as many tokens each


class CancelSend(msgspec.Struct, frozen=True, tag="CancelSend"):
    """Send nothing more of a transfer; both ends still answer."""

    transfer: int
    source: int


class RoleGiven(msgspec.Struct, frozen=True, tag="RoleGiven"):
    """An instance has another role from now on: `flip` is the number of this change."""

    flip: int
    instance: int
    role: Role


class FlipShown(msgspec.Struct, frozen=True, tag="FlipShown"):
    """The first work of only the new role was submitted, or there is none."""

    flip: int


class Noted(msgspec.Struct, frozen=True, tag="Noted"):
    """A sentence on a decision of the Core itself, for the log and the journal."""

    text: str


class Wake(msgspec.Struct, frozen=True, tag="Wake"):
    """Start the worker of an instance that was asleep until now."""

    instance: int


class Emptied(msgspec.Struct, frozen=True, tag="Emptied"):
    """The Core takes no new requests, and the last sequence has ended."""


Action = (
    Send
    | CancelSend
    | Submit
    | Started
    | Deliver
    | Finished
    | Rejected
    | WakeAt
    | RoleGiven
    | FlipShown
    | Noted
    | Wake
    | Emptied
)
