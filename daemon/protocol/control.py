"""The control socket's messages, and the immutable snapshot that every viewer reads."""

import msgspec

from daemon.core.values.snapshot import (
    BlockOwners,
    ByKind,
    Counters,
    Due,
    DueNow,
    ExpertStatus,
    FlipStatus,
    InstanceStatus,
    KindStatus,
    Mark,
    RankStatus,
    RolesExpected,
    RolesStatus,
    SequenceStatus,
    StageStatus,
    StateStatus,
    Story,
    TransferStatus,
)
from daemon.memory.block_pool import BlockUse
from daemon.protocol.plan import PlanStatus
from daemon.state.pause import Cause
from daemon.state.request import FinishReason
from daemon.state.reserved import (
    GroupStatus,
    LendingStatus,
    LoanStatus,
    PeakStatus,
    ReservedStatus,
)
from daemon.state.role import ROLES_MODES, WATCHED, Role
from daemon.state.story import What

# Viewers import this module and nothing of the Core.
__all__ = [
    "ROLES_MODES",
    "WATCHED",
    "BlockOwners",
    "BlockUse",
    "ByKind",
    "Cause",
    "Counters",
    "Due",
    "DueNow",
    "ExpertStatus",
    "FinishReason",
    "FlipStatus",
    "GroupStatus",
    "InstanceStatus",
    "KindStatus",
    "LendingStatus",
    "LoanStatus",
    "Mark",
    "PeakStatus",
    "PlanStatus",
    "RankStatus",
    "ReservedStatus",
    "Role",
    "RolesExpected",
    "RolesStatus",
    "SequenceStatus",
    "StageStatus",
    "StateStatus",
    "Story",
    "TransferStatus",
    "What",
]

FRAME_LIMIT_BYTES = 1 << 20
FLIP_WAIT_S = 60.0
"""How long the answer to a `Flip` may wait for the first work of the new role."""


class Status(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for one `Snapshot`."""


class Watch(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for a `Snapshot` now and then every `interval_s` (0.2 .. 60), until the socket closes."""

    interval_s: float = 0.5


class ChoosePolicy(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Change the policy; the answer is a `Snapshot` made after that."""

    policy: str
    instance: str = ""  # its name; empty: all instances


class ChooseBudget(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Change the token budget of steps; the answer is a `Snapshot` made after that."""

    tokens: int  # 0: as configured
    instance: str = ""  # its name; empty: all instances


class ChoosePlacement(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Change the placement policy; the answer is a `Snapshot` made after that."""

    placement: str


class AskStory(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for the `Story` of one sequence that lives or ended a short while ago."""

    sequence: int


class AskOwners(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for the `BlockOwners` of the instance with this index."""

    instance: int


class Reload(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Read the configuration file again; the answer is `Reloaded`."""


class Drain(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Take no new requests, finish the present ones, and stay; the answer is a `Snapshot`."""


class Resume(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Take requests again, after a `Drain`; the answer is a `Snapshot`."""


class Flip(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Give an instance another role; the answer is `Flipped`."""

    instance: str  # its name
    role: str
    wait_s: float = FLIP_WAIT_S  # for the first work of the new role: 0 .. FLIP_WAIT_S


class ChooseRoles(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Turn automatic roles on or off; the answer is a `Snapshot`."""

    mode: str  # one of ROLES_MODES


class Migrate(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Migrate a sequence to the instance of this name; the answer is `Migrating`."""

    sequence: int
    instance: str


class DrainInstance(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Migrate everything away from one instance, leave it idle; the answer is a `Snapshot`."""

    instance: str


class ResumeInstance(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Use an instance again, after a `DrainInstance`; the answer is a `Snapshot`."""

    instance: str


class Flipped(msgspec.Struct, frozen=True, tag=True):
    """An instance has another role. Times are seconds since the order, as in `FlipStatus`.

    It is sent when the first work that only the new role gets was sent, or at once where there is
    none (`idle`).
    """

    number: int  # of its `FlipStatus`; 0: it had the role already
    instance: str
    was: Role
    role: Role
    flip_s: float  # until that work was sent; -1: not within the time that the daemon waits
    clear_s: float  # until nothing of the old role was left; -1: not yet
    idle: bool


class Cap(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Limit the power of an instance's card; the answer is `Capped`."""

    instance: str  # its name
    watts: float | None = None  # None: as its role asks


class Capped(msgspec.Struct, frozen=True, tag=True):
    """An instance's wish for its card's limit, and the limit in force."""

    instance: str
    asked_watts: float | None  # None: as its role asks
    wish_watts: float  # the wanted limit, within the card's range
    cap_watts: float  # in force: higher where another lease of the card is
    min_watts: float  # the card's range
    max_watts: float


class Migrating(msgspec.Struct, frozen=True, tag=True):
    """A sequence was ordered to another instance; its story and the transfers show the rest."""

    sequence: int
    source: str
    target: str


class Reloaded(msgspec.Struct, frozen=True, tag=True):
    """The result of reading the configuration again."""

    file: str
    changed: tuple[str, ...]  # dotted keys whose new values hold now
    needs_restart: tuple[str, ...]  # dotted keys that keep their old values until a restart


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The message was not understood or not allowed."""

    message: str


class ApiStatus(msgspec.Struct, frozen=True):
    """The state of the API process."""

    up: bool = False  # it lives, and has answered the daemon
    deaths: int = 0  # processes that died, or were killed because they hung


class PredictorStatus(msgspec.Struct, frozen=True):
    """The state of the predictor process. Counts and sums are of one life of the API process."""

    kind: str = "none"
    up: bool = False  # the process lives
    asks: int = 0  # requests to predict
    dropped: int = 0  # of them, those that ended first, waited too long or were lost
    answers: int = 0
    took_sum_s: float = 0.0  # the process's time for all its answers


class GpuStatus(msgspec.Struct, frozen=True):
    """The driver's figures of one GPU; None where it has none."""

    name: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    busy_percent: int | None = None  # share of time with a kernel running


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """All that a viewer sees, at one moment; immutable."""

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
    policies: tuple[str, ...] = ()  # to choose from
    gpus: tuple[GpuStatus | None, ...] = ()  # by instance; None where no figures can be read
    api: ApiStatus = ApiStatus()
    journal_dropped: int = 0  # events that could not be written to the journal
    transfers: tuple[TransferStatus, ...] = ()  # between instances, in flight, oldest first
    flips: tuple[FlipStatus, ...] = ()  # the newest few changes of roles, oldest first
    placement: str = ""  # the placement policy in use
    compress: bool = False  # blocks in host memory are packed into 8 bits
    roles: RolesStatus = RolesStatus()  # the state of automatic roles
    plan: PlanStatus = PlanStatus()  # of the self-driving plan
    due: tuple[DueNow, ...] = ()  # by SLO scale; ended requests are counted in `counters.due`


Closer = AskStory | AskOwners
Order = (
    ChoosePolicy
    | ChooseBudget
    | ChoosePlacement
    | ChooseRoles
    | Flip
    | Cap
    | Migrate
    | Drain
    | Resume
    | DrainInstance
    | ResumeInstance
    | Reload
)
OrderAnswer = Reloaded | Flipped | Migrating | Capped
"""The answers of orders that have one of their own; those of others are a `Snapshot`."""
FromViewer = Status | Watch | Order | Closer
ToViewer = Snapshot | Story | BlockOwners | Reloaded | Flipped | Migrating | Capped | Refused
