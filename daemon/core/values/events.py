"""The Core's input events. Time comes in with each event; the Core reads no clock.

The journal is the list of events, in order. A new Core that takes them does the same again.
"""

import msgspec

from daemon.state.role import Role
from daemon.state.transfer_mode import LAST_CHUNK, HandoffMode
from daemon.wire.columns import Column, int32, int64


class InstanceConfig(msgspec.Struct, frozen=True, array_like=True):
    """One instance's configuration; its worker says later how many blocks it has.

    Limits left open, with 0 or "", are those of `Configured`.
    """

    name: str
    role: Role
    device: str
    stages: int = 1  # of its pipeline; steps in flight are then over distinct sequences
    ahead: bool = False  # its worker begins a step before the one before it is done
    policy: str = ""
    max_running: int = 0
    max_batch_tokens: int = 0
    prefill_chunk: int = 0
    depth: int = 0
    swap: str = ""
    decode_admission: str = ""
    chunk_is_own: bool = False  # neither budget nor chunk was configured: the policy has them
    budget_is_own: bool = False  # its budget was not configured
    wakes_in_s: float = 0.0  # it has no worker until it is woken, which takes so long; 0: awake


POLICY_NAMES = 1
"""The names of policies as they are since `synced` lends and packing by the peak is `packed`."""


class Configured(msgspec.Struct, frozen=True, tag="Configured", array_like=True):
    """The first event of every journal: the Core's configuration."""

    now: float
    instances: tuple[InstanceConfig, ...]
    policy: str
    block_size: int
    max_running: int  # slots of an instance
    max_batch_tokens: int  # token budget of a step
    prefill_chunk: int  # most tokens of one sequence in one step
    max_waiting: int  # sequences that may queue before requests are rejected
    max_len: int  # tokens of the longest sequence
    prefix_cache: bool
    depth: int = (
        0  # steps in flight; 0: 1 where a step takes over 20 ms and none begins ahead, else 2
    )
    swap: str = ""  # swap mode of victims: one of SWAP_MODES, or "": the policy's
    starve_s: float = 0.3  # longest wait before a promotion (FastServe's alpha)
    placement: str = "least_loaded"  # one of PLACEMENTS
    max_pause_s: float = 4.0  # of a stream that has begun, where the policy bounds pauses
    handoff: str = HandoffMode.AUTO.value  # way of prompts to other instances
    decode_admission: str = "greedy"  # one of DECODE_ADMISSIONS
    slo_ttft_s: float = 2.0  # most that a first token should take
    slo_tpot_s: float = 0.1  # most that each later one should take, in the mean of an answer
    roles: str = ""  # "auto": the watcher sets instances' roles; else as configured
    policy_names: int = 0  # POLICY_NAMES; 0, in an older journal: `daemon/journal/older_names.py`
    pair: str = LAST_CHUNK  # one of PAIRINGS
    mixed_pool: bool = False  # whether work goes to instances of the other role where it must


class WorkerReady(msgspec.Struct, frozen=True, tag="WorkerReady", array_like=True):
    """An instance's worker can compute: its pool has `num_blocks` empty blocks."""

    now: float
    instance: int
    num_blocks: int
    block_bytes: int
    step_s: float
    num_host_blocks: int = 0
    copy_block_s: float = 0.0  # to swap one block out or in
    token_s: float = 0.0  # time that a further prompt token adds to a step
    forward_tokens: int = 0  # its target forward size, where the policy asks for it
    row_s: float = 0.0  # time that a further decode adds to a step; 0: unknown
    same_until: tuple[
        int, ...
    ] = ()  # sizes of steps beyond which tokens are computed in another way
    most_times: int = 1  # decode steps that it computes as one
    windows: tuple[int, ...] = ()  # of its groups of layers, in tokens; empty: all see all
    kinds: tuple[str, ...] = ()  # of these groups; empty in an older journal
    state_pages: int = 0  # of a sequence's states


class WorkerLost(msgspec.Struct, frozen=True, tag="WorkerLost", array_like=True):
    """An instance's worker died; its KV is gone, its sequences wait again."""

    now: float
    instance: int
    blamed: bool = False  # its work may have killed it: it was not ended from outside


class InstanceGivenUp(msgspec.Struct, frozen=True, tag="GivenUp", array_like=True):
    """An instance's lost worker is not started again. If it ever reports ready, all is as
    before.
    """

    now: float
    instance: int


class RequestArrived(msgspec.Struct, frozen=True, tag="RequestArrived", array_like=True):
    """A request, in counts and block hashes: never text, never token ids."""

    now: float
    request: int
    num_prompt_tokens: int
    max_tokens: int
    n: int = 1
    priority: int = 0
    hashes: bytes = b""
    prompt_cost: int = 1  # a prompt token's time in a step, in usual tokens
    deadline_s: float = 0.0  # due time of the whole answer, as `now`; 0: no deadline
    slo_scale: float = 0.0  # else due after this many times its time alone; 0: not due


class Predicted(msgspec.Struct, frozen=True, tag="Predicted", array_like=True):
    """A predictor's estimate of the length of a request's answers."""

    now: float
    request: int
    num_tokens: int  # of output, the median
    high_tokens: int = 0  # the 0.9 quantile; 0: unknown


class StepDone(msgspec.Struct, frozen=True, tag="StepDone", array_like=True):
    """A step answered. R sampled rows, in the plan's order.

    A row may have sampled none or several tokens where no later step in flight goes on from it: the
    KV of all but the last is then in its sequence's blocks. A row that ends has at least one token,
    and its reason is that of the last. Each row of a step that is computed several times sampled as
    many tokens, unless it ended before.
    """

    now: float
    instance: int
    step: int
    reasons: Column  # uint8 [R]: STOP where the sampled token ends the sequence
    elapsed_s: float
    counts: Column = msgspec.field(default_factory=int32)  # int32 [R], sampled; empty: one each
    # int32 [R]: tokens that could be drafted behind a row's last one; empty: none, or not looked
    # for
    offers: Column = msgspec.field(default_factory=int32)
    # Blocks that answers have filled since the event before: their sequences, int64 [S], their
    # indices in these, int32 [S], and their hashes, 16 bytes each.
    filled: Column = msgspec.field(default_factory=int64)
    filled_at: Column = msgspec.field(default_factory=int32)
    hashes: bytes = b""


class CopiesDone(msgspec.Struct, frozen=True, tag="Copied", array_like=True):
    """Every swap copy of an instance's plans up to and including `step` is done.

    Counts and times are of the copies since the last such event; times as the link was busy.
    """

    now: float
    instance: int
    step: int
    num_out: int  # blocks
    out_s: float
    num_in: int
    in_s: float


class PolicyChosen(msgspec.Struct, frozen=True, tag="PolicyChosen", array_like=True):
    """The operator chose another policy; every living sequence is ranked anew."""

    now: float
    policy: str
    instance: int = -1  # the instance to change; -1: all


class BudgetChosen(msgspec.Struct, frozen=True, tag="BudgetChosen", array_like=True):
    """The operator chose another token budget of steps."""

    now: float
    tokens: int  # 0: as configured
    instance: int = -1  # the instance to change; -1: all


class PlacementChosen(msgspec.Struct, frozen=True, tag="PlacementChosen", array_like=True):
    """The operator chose another placement for all sequences placed from now on."""

    now: float
    placement: str

    def changed(self, config: Configured) -> Configured:
        """The configuration with it."""
        return msgspec.structs.replace(config, placement=self.placement)


class Sealed(msgspec.Struct, frozen=True, tag="Sealed", array_like=True):
    """Hashes of further full blocks of a sequence: in older journals, where StepDone has none."""

    now: float
    sequence: int
    first_block: int
    hashes: bytes


class Finish(msgspec.Struct, frozen=True, tag="Finish", array_like=True):
    """A stop string was found: the sequence ends. Older journals have a number more here."""

    now: float
    sequence: int


class Abort(msgspec.Struct, frozen=True, tag="Abort", array_like=True):
    """The client is gone: every sequence of the request ends now, at whatever stage."""

    now: float
    request: int


class DrainBegun(msgspec.Struct, frozen=True, tag="DrainBegun", array_like=True):
    """The operator's order to refuse new requests and to finish the present ones."""

    now: float


class Resumed(msgspec.Struct, frozen=True, tag="Resumed", array_like=True):
    """The operator's order to accept new requests again, after a `DrainBegun`."""

    now: float


class Reconfigured(msgspec.Struct, frozen=True, tag="Reconfigured", array_like=True):
    """The operator changed limits of the running daemon; living sequences stay as they are."""

    now: float
    max_waiting: int  # as in `Configured`
    starve_s: float
    max_pause_s: float = 0.0  # 0, in an older journal: as it was
    handoff: str = ""  # likewise
    pair: str = ""  # likewise
    mixed_pool: bool | None = None  # None: likewise

    def changed(self, config: Configured) -> Configured:
        """The configuration with these limits."""
        return msgspec.structs.replace(
            config,
            max_waiting=self.max_waiting,
            starve_s=self.starve_s,
            max_pause_s=self.max_pause_s or config.max_pause_s,
            handoff=self.handoff or config.handoff,
            pair=self.pair or config.pair,
            mixed_pool=config.mixed_pool if self.mixed_pool is None else self.mixed_pool,
        )


class LinkChanged(msgspec.Struct, frozen=True, tag="Link", array_like=True):
    """One end of the link from one worker to another opened, or is closed.

    Closed: no copy over it touches this instance's blocks any more, and its end of every open
    transfer was answered before.
    """

    now: float
    instance: int  # of the reporting worker
    peer: int  # the instance at the other end
    sends: bool  # whether this is the end that blocks leave
    is_up: bool
    link: int = 0  # its number, the same at both ends; a reopened link has another


class TransferEnded(msgspec.Struct, frozen=True, tag="Transferred", array_like=True):
    """A transfer is over at one of its ends: no copy of it touches this instance's blocks any more.

    At the target the first `num_right` blocks are whole, and steps may read them. The source
    reports all blocks, or 0 where the transfer was broken off.
    """

    now: float
    instance: int  # of the reporting worker
    transfer: int
    num_right: int
    elapsed_s: float  # since this end first heard of it


class MigrationOrdered(msgspec.Struct, frozen=True, tag="MigrationOrdered", array_like=True):
    """The operator's order to go on with a sequence on another instance."""

    now: float
    sequence: int
    instance: int


class FlipOrdered(msgspec.Struct, frozen=True, tag="FlipOrdered", array_like=True):
    """An instance has another role from now on (a flip); nothing is drained or computed again."""

    now: float
    instance: int
    role: Role
    why: str = "operator"


class RolesChosen(msgspec.Struct, frozen=True, tag="RolesChosen", array_like=True):
    """The operator's order on roles: the watcher sets them for all instances ("auto"), or they have
    their configured ones again ("mixed").
    """

    now: float
    mode: str


class InstanceDrained(msgspec.Struct, frozen=True, tag="InstanceDrained", array_like=True):
    """The operator's order to move everything away from an instance, and to leave it idle."""

    now: float
    instance: int


class InstanceResumed(msgspec.Struct, frozen=True, tag="InstanceResumed", array_like=True):
    """The operator's order to use an instance again."""

    now: float
    instance: int


class Tick(msgspec.Struct, frozen=True, tag="Tick", array_like=True):
    """The time of a `WakeAt` has come."""

    now: float


Event = (
    Configured
    | WorkerReady
    | WorkerLost
    | RequestArrived
    | Predicted
    | StepDone
    | CopiesDone
    | PolicyChosen
    | Sealed
    | Finish
    | Abort
    | DrainBegun
    | Resumed
    | Reconfigured
    | LinkChanged
    | TransferEnded
    | MigrationOrdered
    | FlipOrdered
    | InstanceDrained
    | InstanceResumed
    | Tick
    | PlacementChosen
    | RolesChosen
    | InstanceGivenUp
    | BudgetChosen
)
