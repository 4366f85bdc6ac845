"""Snapshots of the Core for viewers: plain values, copied, never its own objects."""

from bisect import bisect_left

import msgspec

from daemon.scheduler.preemption_stats import PreemptionStats
from daemon.state.pause import NO_PAUSES, Cause, Pauses, one_more
from daemon.state.reserved import ReservedStatus
from daemon.state.role import Role
from daemon.wire.columns import Column, int32

MAX_SEQUENCES_SHOWN = 500
MAX_BLOCKS_SHOWN = 4096
STEPS_SHOWN = 64


class KindStatus(msgspec.Struct, frozen=True):
    """The pages of one kind of layers in an instance's pool."""

    kind: str  # as `LayerGroup.kind`
    window: int  # tokens that the layers see; 0: all
    groups: int  # of layers, each with pages of its own
    held: int  # pages
    fenced: int
    cached: int


class ByKind(msgspec.Struct, frozen=True):
    """The pages of a pool by the kinds of layers that they are of."""

    kinds: tuple[KindStatus, ...]
    kind_map: Column  # uint8 [cells of the block map]: index of the kind of each cell's block


class StateStatus(msgspec.Struct, frozen=True):
    """The states of an instance's sequences, and their snapshots in the prefix cache."""

    pages: int  # of a sequence's states
    snapshots: int
    made: int  # snapshots since the worker began
    hits: int  # sequences that began from one since then
    hit_tokens: int  # that these did not compute


class ExpertStatus(msgspec.Struct, frozen=True):
    """The experts of an instance whose worker keeps some in host memory."""

    on_device: int  # of all layers
    in_ram: int
    bytes_in_ram: int
    chosen_on_device: int  # pairs of a token and an expert since the worker began
    chosen_in_ram: int
    exchanged: int  # experts that took another's place on the device since then

    @property
    def ram_share(self) -> float:
        """Share of the tokens' experts that the CPU computed."""
        return self.chosen_in_ram / max(self.chosen_on_device + self.chosen_in_ram, 1)


class StageStatus(msgspec.Struct, frozen=True):
    """The time of an instance's steps, and what of it each of its pipeline stages computed."""

    steps_s: float  # since the worker began
    computed_s: tuple[float, ...]  # of each stage, of the same
    newest_s: float  # of the newest second or so with steps
    newest_computed_s: tuple[float, ...]

    @property
    def bubbles(self) -> tuple[float, ...]:
        """The share of the newest steps' time in which each stage waited for another."""
        return tuple(
            min(1.0, max(0.0, 1.0 - computed_s / self.newest_s)) if self.newest_s else 0.0
            for computed_s in self.newest_computed_s
        )


class RankStatus(msgspec.Struct, frozen=True, array_like=True):
    """One process of an instance of several."""

    pid: int
    state: str  # "loading" | "ready" | "stopped"
    memory_bytes: int  # of the host that the process holds
    device: str = ""  # a GPU's; empty: the CPU


class InstanceStatus(msgspec.Struct, frozen=True):
    """One instance: a worker of 1..N devices and its KV pool."""

    name: str
    role: Role
    device: str
    state: str  # "loading" | "ready" | "lost" | "given up"
    policy: str
    running: int
    waiting: int
    kv_blocks: int
    kv_free: int  # blocks that hold nothing; free + held + cached + fenced are all
    kv_held: int
    kv_cached: int  # blocks that no sequence needs, and that a later prompt may share
    kv_fenced: int
    kv_block_bytes: int
    block_map: Column  # uint8 [<= 4096]: BlockUse of each block, or of the busiest of a stretch
    steps_in_flight: int
    steps: int  # cumulative
    step_s: float  # smoothed time of a step
    batch_rows: int  # rows and tokens of the newest step
    batch_tokens: int
    load_stage: str = ""
    load_fraction: float = 1.0
    load_left_s: float = -1.0  # until it is ready, if all goes as the last time; -1: unknown
    swap: str = "recompute"  # the swap mode
    host_blocks: int = 0
    host_held: int = 0  # blocks of the host pool that hold or will hold a sequence's KV
    out_blocks: int = 0  # swapped so far; cumulative
    in_blocks: int = 0
    ahead_blocks: int = 0  # of them, before their sequences had a slot
    ahead_used: int = 0  # of these, found there by their sequences
    burst_blocks: int = 0  # that the burst reserve keeps ready: free, or copied to the host
    link_s: float = 0.0  # how long the swap link was busy, both directions; cumulative
    levels: tuple[int, ...] = ()  # sequences in each queue level, waiting or running; () if none
    kv_reserved: int = 0  # of the free and cached ones, reserved for sequences that run
    drained: bool = False  # the operator wants it idle: its sequences migrate
    remote_kvs: int = 0  # sequences that left it with remote KV in its pools
    remote_kv_blocks: int = 0  # blocks of its KV pool that this KV takes
    step_p99_s: float = 0.0  # of the steps of the last minute; 0: there was none
    fallbacks: tuple[tuple[str, str], ...] = ()  # kernels that torch stands in for, and why
    watts: float | None = None  # that its card draws; None: unknown, here and below
    cap_watts: float | None = None  # the card's limit
    cap_pinned: bool = False  # by an operator
    energy_j: float | None = None  # that the card drew since the daemon reads it; cumulative
    cap_binding_share: float | None = None  # of the newest look, in which the limit slowed the card
    joules_per_token: float | None = None  # of the same, over all tokens that were computed
    kv_written: float = 0.0  # share of the pool's token places that hold a token's KV
    batch_budget: int = 0  # the most tokens of a step; 0: unknown
    newest_tokens: tuple[int, ...] = ()  # of the newest steps, at most 64, oldest first
    reserved: ReservedStatus | None = None  # None: its policy reserves nothing by predictions
    pool: str = ""  # "mixed" while it does work of the other role in the mixed pool
    decode_admission: str = ""  # one of DECODE_ADMISSIONS; "": unknown
    by_kind: ByKind | msgspec.UnsetType = msgspec.UNSET  # unset: a block has all layers
    states: StateStatus | msgspec.UnsetType = msgspec.UNSET  # unset: no layer keeps any
    ranks: tuple[RankStatus, ...] = ()  # of an instance of several processes
    experts: ExpertStatus | msgspec.UnsetType = msgspec.UNSET  # unset: none lies in host memory
    stages: StageStatus | msgspec.UnsetType = msgspec.UNSET  # unset: it has none, or no step yet
    node: str | msgspec.UnsetType = msgspec.UNSET  # of a cluster; "?" until Ray has placed it
    chosen_budget: int | msgspec.UnsetType = msgspec.UNSET  # unset: a step's is as configured

    def bubble_of(self, rank: int) -> float | None:
        """The bubbles of a rank's stage, as a share of the newest steps' time; None: not known, or
        it is no stage. The first rank has the last stage.
        """
        if self.stages is msgspec.UNSET:
            return None
        return self.stages.bubbles[rank - 1]

    @property
    def kv_kinds(self) -> tuple[KindStatus, ...]:
        """The kinds of layers whose pages are told apart."""
        return () if self.by_kind is msgspec.UNSET else self.by_kind.kinds

    @property
    def kv_used(self) -> int:
        """Blocks that a sequence needs, or that a step or copy in flight names."""
        return self.kv_held + self.kv_fenced


class TransferStatus(msgspec.Struct, frozen=True, array_like=True):
    """Blocks on their way from one instance's pool to another's."""

    transfer: int
    sequence: int  # owner of the blocks
    source: str  # names of instances
    target: str
    num_blocks: int
    num_bytes: int
    age_s: float
    expected_s: float  # in all, as transfers over this link took so far; 0: unknown
    ahead: bool  # the sequence still runs at the source
    from_host: bool


class FlipStatus(msgspec.Struct, frozen=True, array_like=True):
    """A change of an instance's role."""

    number: int  # counted from 1
    instance: str
    was: Role
    role: Role
    why: str
    age_s: float  # since it was ordered
    flip_s: float  # until the first work that only the new role gets was sent; -1: not yet
    clear_s: float  # until nothing of the old role was left; -1: not yet
    idle: bool  # there was no such work, or it ended before it came


class RolesExpected(msgspec.Struct, frozen=True, array_like=True):
    """The forecast of a choice of roles. Times are means; -1: overloaded."""

    choice: str  # "mixed", or prefill:decode
    attainment: float  # share of answers that meet both SLOs
    ttft_kept: float
    tpot_kept: float
    ttft_s: float
    tpot_s: float
    kv_share: float  # of the pools of decoding instances


class RolesStatus(msgspec.Struct, frozen=True):
    """The choice of roles, and the reason for it."""

    mode: str = "mixed"  # "auto": the watcher sets roles; "mixed": they stay as configured
    present: str = "mixed"  # the choice that is in force; "undecided": roles that no choice has
    pinned: tuple[str, ...] = ()  # names of instances that keep their roles
    decision: str = ""  # outcome of the last look
    age_s: float = 0.0  # since it first said so
    expected: tuple[RolesExpected, ...] = ()  # of the choices, mixed first
    measured: float = 1.0  # share of the present load's answers that met both SLOs
    num_measured: int = 0


class SequenceStatus(msgspec.Struct, frozen=True, array_like=True):
    """One sequence; a snapshot lists at most 500, those that run first."""

    sequence: int
    state: str  # "waiting" | "prefill" | "ready" (and waits for room) | "decode" | "preempted"
    instance: str
    age_s: float
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_blocks: int
    priority: int
    preemptions: int
    predicted_tokens: int = -1  # of output; -1: no prediction
    level: int = 0  # of its policy's queues; 0 is served first
    num_host_blocks: int = 0
    residency: str = ""  # "" nowhere | "device" | "host" | "both" | "moving" | "elsewhere"
    request_id: str = ""  # the client's X-Request-Id; the Core knows neither, nor the next
    key: str = ""  # name of the client's key


MOST_SCALES = 32
"""Most SLO scales counted separately: configurations may change them without bound."""


class Due(msgspec.Struct, frozen=True, array_like=True):
    """The answers that had a deadline, of one SLO scale."""

    scale: float  # 0: the requests had deadlines of their own
    kept: int = 0
    missed: int = 0


class DueNow(msgspec.Struct, frozen=True):
    """The living sequences with a deadline, of one SLO scale."""

    scale: float  # as `Due.scale`
    running: int = 0
    waiting: int = 0
    late: int = 0  # of both, those whose deadline is over
    least_left_s: float | None = None  # of the others, until the first deadline; None: unknown


ERROR_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0)
"""Upper bounds of the buckets of predicted lengths' errors; one more bucket lies beyond."""
NO_ERRORS = (0,) * (len(ERROR_BOUNDS) + 1)


class Counters(msgspec.Struct):
    """Cumulative counts since the start; a viewer takes differences."""

    requests: int = 0
    rejected: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    recomputed_tokens: int = 0
    swaps_out: int = 0  # sequences that left the device by swapping
    swaps_in: int = 0  # that came back; `handoffs` came from elsewhere and are none of them
    prediction_count: int = 0  # finished requests that had a prediction
    prediction_error_sum: float = 0.0  # of |predicted - true| / true
    prediction_errors: tuple[int, ...] = NO_ERRORS  # no larger than each of ERROR_BOUNDS
    predictions_near: int = 0  # within a factor of two of the truth
    ttft_count: int = 0
    ttft_sum_s: float = 0.0
    tpot_count: int = 0  # answers of two tokens or more that finished
    tpot_sum_s: float = 0.0  # of each one's (last - first token) / (tokens - 1)
    worker_deaths: int = 0
    pauses: tuple[Pauses, ...] = NO_PAUSES  # by `daemon.state.pause.Cause`
    handoffs: int = 0  # sequences that went on elsewhere with their KV
    handoff_sum_s: float = 0.0  # from leaving one instance until the KV is at the other
    handoffs_failed: int = 0  # transfers that failed or arrived wrong; computed again
    sent_blocks: int = 0  # by transfers that ended well
    sent_bytes: int = 0
    flips: int = 0
    due: tuple[Due, ...] = ()  # by scale, the one that was counted last at the end
    drafts: int = 0  # rows of steps that verified drafted tokens beside their own
    draft_tokens: int = 0
    accepted_tokens: int = 0  # drafts that were accepted

    def note_first(self, ttft_s: float) -> None:
        """Count an answer's first token."""
        self.ttft_count += 1
        self.ttft_sum_s += ttft_s

    def note_answer(self, span_s: float, num_tokens: int, predicted_tokens: int) -> None:
        """Count an answer of at least a token that finished `span_s` after its first one."""
        if num_tokens > 1:
            self.tpot_count += 1
            self.tpot_sum_s += span_s / (num_tokens - 1)
        if predicted_tokens >= 0:
            error = abs(predicted_tokens - num_tokens) / num_tokens
            place, errors = bisect_left(ERROR_BOUNDS, error), self.prediction_errors
            self.prediction_count += 1
            self.prediction_error_sum += error
            self.prediction_errors = (*errors[:place], errors[place] + 1, *errors[place + 1 :])
            self.predictions_near += num_tokens <= 2 * predicted_tokens <= 4 * num_tokens

    @property
    def median_error(self) -> float:
        """The error that half of the predictions did not exceed, as far as ERROR_BOUNDS tell:
        within a bound and the next one errors are taken to be spread evenly. Of few answers that
        were predicted as far too long, a mean would tell nothing else.
        """
        left = sum(self.prediction_errors) / 2.0
        low = 0.0
        for high, count in zip(ERROR_BOUNDS, self.prediction_errors, strict=False):
            if count >= left > 0.0:
                return low + (high - low) * left / count
            left, low = left - count, high
        return low if left > 0.0 else 0.0

    def note_due(self, scale: float, is_kept: bool) -> None:
        """Count an answer that finished and had a deadline; `scale`: as `Due.scale`."""
        old = next((due for due in self.due if due.scale == scale), Due(scale))
        others = [due for due in self.due if due.scale != scale]
        counted = Due(scale, old.kept + is_kept, old.missed + (not is_kept))
        self.due = (*others[-(MOST_SCALES - 1) :], counted)

    def note_preemptions(self, stats: PreemptionStats) -> None:
        """Count an instance's preemptions since the last call."""
        self.preemptions += stats.preemptions
        self.recomputed_tokens += stats.recomputed_tokens
        self.swaps_out += stats.swaps_out
        self.swaps_in += stats.swaps_in

    def note_drafts(self, num_rows: int, num_tokens: int, num_accepted: int) -> None:
        """Count the rows of a step that drafted, their drafts, and the accepted ones."""
        self.drafts += num_rows
        self.draft_tokens += num_tokens
        self.accepted_tokens += num_accepted

    def note_handoff(self, took_s: float) -> None:
        """Count a sequence that went on elsewhere with its KV, `took_s` after it left."""
        self.handoffs += 1
        self.handoff_sum_s += took_s

    def note_pause(self, cause: Cause, length_s: float, num: int = 1) -> None:
        """Count `num` pauses, each of `length_s`."""
        self.pauses = one_more(self.pauses, cause, length_s, num)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """One thing that happened to a sequence; `daemon.state.story.What` says what `what` can be."""

    time_s: float  # on the clock of `Snapshot.time_s`
    what: str
    amount: int
    other: int


class Story(msgspec.Struct, frozen=True, tag="Story"):
    """One sequence from its arrival on; without marks if it is unknown or forgotten."""

    sequence: int
    time_s: float
    marks: tuple[Mark, ...] = ()
    num_dropped: int = 0  # marks left out of the middle
    status: SequenceStatus | None = None  # None once it has ended
    blocks: Column = msgspec.field(default_factory=int32)  # int32 [n]: its device blocks, in order
    first_token_s: float = -1.0  # as `time_s`; -1: not yet
    deadline_s: float = 0.0  # as `time_s`; 0: it has none, or none is known
    paused_s: float = 0.0  # since its first token, the pause that it may be in included
    behind_prompts_s: float = 0.0  # of them, behind prompts
    slo_scale: float = 0.0  # its deadline is by this scale, and its likely length; 0: its own


class BlockOwners(msgspec.Struct, frozen=True, tag="BlockOwners"):
    """The owners of one instance's blocks, cell by cell of its `block_map`."""

    instance: int
    time_s: float
    owners: Column  # int64 [cells]: a sequence that has the block, -1: none
    shares: Column  # int32 [cells]: how many sequences have it; the most in a stretch


class CoreSnapshot(msgspec.Struct, frozen=True):
    """The Core at one moment."""

    instances: tuple[InstanceStatus, ...]
    sequences: tuple[SequenceStatus, ...]
    running: int
    waiting: int
    draining: bool
    counters: Counters
    transfers: tuple[TransferStatus, ...] = ()  # in flight, oldest first
    flips: tuple[FlipStatus, ...] = ()  # the newest few, oldest first
    roles: RolesStatus = RolesStatus()
    due: tuple[DueNow, ...] = ()  # by scale
