"""The control socket's messages, and the immutable snapshot that every viewer reads."""

import msgspec

from daemon.wire.columns import Column

FRAME_LIMIT_BYTES = 1 << 20


class Status(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for one `Snapshot`."""


class Watch(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for a `Snapshot` now and then every `interval_s` (0.2 .. 60), until the socket closes."""

    interval_s: float = 0.5


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The message was not understood or not allowed."""

    message: str


class InstanceStatus(msgspec.Struct, frozen=True):
    """One instance: a worker of 1..N devices and its KV pool."""

    name: str
    role: str  # "mixed" | "prefill" | "decode"
    device: str
    state: str  # "loading" | "ready" | "lost"
    policy: str
    running: int
    waiting: int
    kv_blocks: int
    kv_free: int  # blocks that nobody needs: free + cached
    kv_held: int
    kv_cached: int
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


class SequenceStatus(msgspec.Struct, frozen=True, array_like=True):
    """One sequence, newest first after those that run; at most 500 are listed."""

    sequence: int
    state: str  # "waiting" | "prefill" | "decode" | "preempted"
    instance: str
    age_s: float
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_blocks: int
    priority: int
    preemptions: int


class Counters(msgspec.Struct, frozen=True):
    """Cumulative since the start; a viewer takes differences."""

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
    ttft_count: int = 0
    ttft_sum_s: float = 0.0
    worker_deaths: int = 0


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


class BlockUse:
    """Values of `InstanceStatus.block_map`, in rising order of importance."""

    FREE = 0
    CACHED = 1
    FENCED = 2
    HELD = 3


FromViewer = Status | Watch
ToViewer = Snapshot | Refused
