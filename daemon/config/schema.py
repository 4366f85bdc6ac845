"""The configuration file, as types: one frozen struct a section, unknown fields forbidden."""

import msgspec

from daemon.state.role import AUTO, Role
from daemon.state.transfer_mode import LAST_CHUNK, HandoffMode


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[model]`: which model, and how it is computed."""

    path: str = ""  # a folder, a .gguf file, or org/name of the Hub; empty: the embedded model
    name: str = ""  # the name clients use; empty: the folder's or file's name
    dtype: str = "auto"  # of weights; auto: the model's own; float32 on cpu: nothing is rounded
    quantize: str = "none"  # plain weights, once, to blocks of int8 | int4 | fp8; none: as stored
    experts_on_cpu: int | str = 0  # layers of whose experts as many stay in RAM; auto: as fit
    max_len: int = 0  # tokens of prompt + answer; 0: the model's own limit
    generation_config: str = "auto"  # default sampling: auto (the model's own) | llmd | a folder


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[server]`: the HTTP API."""

    host: str = "127.0.0.1"
    port: int = 8000
    body_limit_bytes: int = 16 * 1024 * 1024
    keepalive_s: float = 15.0  # without a token, time until an SSE comment is sent
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()  # names in Host headers, beside those of this machine
    max_connections: int = 8192  # open at a time; one more is answered 503
    header_timeout_s: float = 10.0  # from a request's first byte to the end of its headers
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0  # between two requests of one connection
    stall_timeout_s: float = 30.0  # for a client that reads nothing of its answer
    max_repeated_tokens: int = 2048  # an answer that repeats one piece longer is ended; 0: not
    page: bool = True  # a page to chat in a browser, at /


class KeyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[key]]`: an API key and its limits. Made by `llmd key new`; 0 is no limit."""

    name: str
    hash: str  # the key's SHA-256 as 64 hexadecimal digits; the key itself is written nowhere
    priority: int = 0  # the best that its requests can have: lower runs first
    requests_per_minute: int = 0
    tokens_per_minute: int = 0  # of prompts and answers
    max_running: int = 0  # answers under way at a time, waiting ones included
    salt: str = ""  # keys of equal salt share cached prefixes; empty: the key's name
    slo_scale: float = 0.0  # deadline of an answer, as a multiple of its time alone; 0: none

    def __repr__(self) -> str:
        """Without the hash: this ends up in logs and error texts."""
        return f"KeyConfig(name={self.name!r})"


class ControlConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[control]`: the admin socket."""

    socket: str = ""  # empty: $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR or /tmp/llmd-UID, + llmd.sock


class SchedulerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[scheduler]`: which sequences run, and on which instance."""

    policy: str = "gittins"
    placement: str = "least_loaded"  # which instance takes a sequence
    max_running: int = 256  # sequences in a batch
    max_batch_tokens: int = 0  # token budget of a step; 0: the policy's own
    prefill_chunk: int = 0  # most tokens of one sequence in a step; 0: as max_batch_tokens
    max_waiting: int = 1024  # sequences that may queue before a request is answered 429
    prefix_cache: bool = True
    prompt_lookup: bool = True  # draft from a sequence's own tokens, where that pays (on a CPU)
    depth: int = 0  # steps in flight; 0: chosen from the step time
    starve_s: float = 0.3  # the wait after which a sequence may rise (mlfq, speculative-queues)
    max_pause_s: float = (
        4.0  # most that a stream that has begun may pause (gittins): the SLO for gaps
    )
    decode_admission: str = "greedy"  # or reserve_static, _dynamic, _peak
    handoff: str = HandoffMode.AUTO.value  # way of a prompt's KV: auto | serialized | layered
    pair: str = LAST_CHUNK  # when an answer's instance is chosen: last_chunk | arrival
    mixed_pool: bool = False  # what finds no room goes to instances of the other role, last of all
    roles: str = AUTO  # who sets roles: auto (forecasts) | low_load | idle (rules) | mixed (nobody)


class SloConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[slo]`: the SLOs of answers, by which placement, roles and power are chosen."""

    ttft_s: float = 2.0  # most that a first token should take
    tpot_s: float = 0.1  # most that each later one should take, in the mean of an answer


class MemoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[memory]`: the KV pool."""

    block_size: int = 16  # tokens
    kv_blocks: int = 0  # 0: from the memory formula
    kv_bytes: int = 0  # 0: from the memory formula
    utilization: float = 0.9  # share of a GPU's memory that llmd may use
    cpu_fraction: float = 0.25  # share of available RAM that a CPU pool may use
    swap: str = ""  # proactive | reactive | recompute | defer | dynamic; empty: the policy's
    host_bytes: int = -1  # host memory that KV blocks are swapped to; -1: chosen, 0: none
    compress: bool = False  # swapped blocks are kept as int8; the text may change slightly
    kv_dtype: str = "auto"  # of the KV pool: auto | int8 | fp8; 8 bits change the text slightly


class InstanceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[instance]]`: a worker. Limits at 0 or "" are those of `[scheduler]` and `[memory]`."""

    device: str
    role: str = Role.MIXED.value
    name: str = ""
    policy: str = ""
    max_running: int = 0
    max_batch_tokens: int = 0
    prefill_chunk: int = 0
    depth: int = 0
    swap: str = ""
    decode_admission: str = ""
    parallel: str = ""  # how several devices compute together: tpN | ppN
    layers: tuple[int, ...] = ()  # of each stage of ppN; empty: by what its device takes for them
    asleep: bool = False  # its worker is started when the others have no room
    wake_s: float = 0.0  # how long that takes, for the decision; 0: as its last start
    card: str = ""  # UUID of the card whose power limit it has; empty: that of its device


class PowerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[power]`: the limits of cards' power, which llmd-powerd sets for the daemon.

    A card has its own default limit; `daemon.power.search` finds that of decode.
    """

    enabled: str = "auto"  # auto (if llmd-powerd runs) | on (its absence is reported) | off
    socket: str = ""  # of llmd-powerd; empty: /run/llmd-powerd/powerd.sock
    min_share: float = 0.5  # of a card's default limit, the least that decode is limited to


class JournalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[journal]`: the record of every Core event."""

    enabled: bool = True
    folder: str = ""  # empty: $STATE_DIRECTORY or the cache folder, + journal
    max_bytes: int = 64 * 1024 * 1024  # of one file; one older file is kept


class PredictConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[predict]`: how long answers will be."""

    kind: str = "features"  # none | mean | features | mlp | retrieval | ranges
    store_size: int = 20_000  # finished requests remembered
    max_age_days: float = 30.0
    keep_text: bool = False  # of prompts, on disk; else embeddings and lengths only


class PlanConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[plan]`: settings that the daemon chooses by simulations of its own traffic."""

    auto: bool = False  # a process at idle priority chooses policy and roles
    profile: str = ""  # of one instance, by `llmd profile`; auto needs it
    period_s: float = 3600.0  # how long a plan is on trial, and how often one is searched at most


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[engine]`: how workers compute."""

    kernels: str = "auto"  # of a GPU: auto (those that a self-test found right) | torch


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[cluster]`: on which machines workers run."""

    launcher: str = "local"  # local (this machine) | ray (the nodes of a Ray cluster)
    address: str = "127.0.0.1:6379"  # of the cluster's head


class DaemonConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[daemon]`: the process itself."""

    cache: str = ""  # empty: $CACHE_DIRECTORY or $XDG_CACHE_HOME/llmd or ~/.cache/llmd
    drain_s: float = 30.0  # after SIGTERM, time for running answers
    threads: int = 0  # compute threads of each CPU worker; 0: one for each core of its share
    restarts: int = 5  # in a minute: of one worker, which is then given up; of the API process
    spare: bool = True  # a process with all imports done waits for a worker to die: 60 to 230 MB
    log_level: str = "info"
    log_format: str = "auto"  # text | json; auto: text, with priorities for systemd's journal


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; every section may be left out."""

    model: ModelConfig = ModelConfig()
    server: ServerConfig = ServerConfig()
    key: tuple[KeyConfig, ...] = ()
    control: ControlConfig = ControlConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    slo: SloConfig = SloConfig()
    memory: MemoryConfig = MemoryConfig()
    instance: tuple[InstanceSpec, ...] = ()  # empty: found when the daemon starts
    power: PowerConfig = PowerConfig()
    journal: JournalConfig = JournalConfig()
    predict: PredictConfig = PredictConfig()
    plan: PlanConfig = PlanConfig()
    engine: EngineConfig = EngineConfig()
    cluster: ClusterConfig = ClusterConfig()
    daemon: DaemonConfig = DaemonConfig()
