"""Messages between the API process and the runtime: one frozen, tagged struct each.

API -> runtime: `Generate`, `FinishSequence`, `AbortRequest`; an `Alive` for each
`Ping`; where lengths are predicted also `PredictedLength` and `Predicting`.
Runtime -> API: `Access` and `Settings` first, then `Serving`, each again on every change, and
`Gauges` and `Ping` now and then; for a request `RequestRejected` or, for each sequence,
`SequenceStarted`, `Tokens`, and at the end a reason in `Tokens` or one `SequenceEnded`.
"""

import msgspec

from daemon.config.schema import KeyConfig
from daemon.core.values.snapshot import Counters, InstanceStatus
from daemon.models.generation import DefaultSampling
from daemon.protocol.control import GpuStatus, PredictorStatus
from daemon.protocol.worker import Logprobs, PromptLogprobs, RowErrors
from daemon.state.request import SamplingParams
from daemon.wire.columns import Column
from daemon.wire.pulse import Alive, Ping


class Generate(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A validated, tokenized request."""

    request: int  # id, chosen by the API process, never reused
    tokens: Column  # int32 [prompt length >= 1]
    max_tokens: int  # >= 1; len(tokens) + max_tokens <= Serving.max_len
    n: int  # token streams; <= MAX_SEQUENCES_PER_REQUEST
    priority: int  # lower runs first; 0 is the default
    sampling: SamplingParams  # of stream 0; the runtime derives the others' seeds
    hashes: bytes  # chain hashes of the full prompt blocks, 16 bytes each (memory/hashing.py)
    deadline_s: float = 0.0  # when the whole answer is due, on the machine's monotonic clock; 0: no
    slo_scale: float = 0.0  # else it is due after its time alone, times this; 0: it is not
    request_id: str = ""  # the client's X-Request-Id, or one that was made for it; for viewers
    key: str = ""  # name of the client's key, for viewers; empty: there are no keys
    salt: bytes = b""  # what the chain of hashes begins with


class FinishSequence(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A stop string was found in the text: the sequence ends; later tokens are discarded."""

    sequence: int


class AbortRequest(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The client went away: end every sequence of the request."""

    request: int


class PredictedLength(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How long a request's answers will be; sent after the request, which may be over by now."""

    request: int
    num_tokens: int  # of output, the middle of what may come
    high_tokens: int  # nine answers in ten are no longer


class Predicting(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The predictor's status: at first, and now and then while there is something new."""

    status: PredictorStatus


class Access(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The keys and addresses that may ask: before the first `Serving`, and on every change.

    They are not on a command line, where every user of the machine could read the keys' hashes.
    """

    keys: tuple[KeyConfig, ...]
    cors_origins: tuple[str, ...]
    allowed_hosts: tuple[str, ...]


class Settings(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Other settings that may change while requests run: with the first `Access`, and on every
    change.
    """

    keepalive_s: float
    log_level: str


class Serving(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model that is served, and whether requests are taken now."""

    model: str  # the name clients use
    root: str  # the model's folder
    ready: bool  # a first token is possible
    draining: bool  # no new requests
    max_len: int  # most tokens of prompt + answer (context and KV pool considered)
    context_len: int  # the model's own limit
    block_size: int
    vocab_size: int
    status: str  # a sentence for people: "loading weights 40 %", "ready", ...
    last_step_age_s: float = -1.0  # age of the newest engine step; -1: none yet
    fault: str = ""  # why waiting work makes no progress
    defaults: DefaultSampling = DefaultSampling()


class Gauges(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The runtime's figures, about once a second: for `/metrics` and `/status`."""

    counters: Counters
    waiting: int  # sequences without a place, those that wait for their leader's prompt included
    instances: tuple[InstanceStatus, ...]  # without their block maps
    lag_s: float  # how late the timer of this message fired
    gpus: tuple[GpuStatus | None, ...] = ()  # of the instances; None where no figures can be read
    api_deaths: int = 0  # API processes that died or hung
    journal_dropped: int = 0  # events that the journal misses
    uptime_s: float = 0.0  # of the daemon


class SequenceStarted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A sequence got its first place in a batch."""

    sequence: int
    num_cached_tokens: int  # prompt tokens found in the prefix cache


class Tokens(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One step's new tokens of this API process's sequences."""

    sequences: Column  # int64 [T]; tokens of one sequence follow each other
    tokens: Column  # int32 [T]
    reasons: Column  # uint8 [T]: FinishReason; not NONE: the sequence has ended with this token
    logprobs: Logprobs | None = None  # rows index this message's T
    errors: RowErrors = ()  # why, where the reason is ERROR; these rows, too


class SequenceEnded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A sequence ended without a further token (finish, abort, error)."""

    sequence: int
    reason: int  # FinishReason
    error: str = ""


class RequestRejected(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The request was refused; nothing of it is kept."""

    request: int
    kind: str  # "queue_full", "too_long", "too_many", "unknown_token", "draining", "not_ready"
    message: str
    retry_after_s: float  # estimated wait for queue_full; 0: retrying will not help


FromApi = Generate | FinishSequence | AbortRequest | Alive | PredictedLength | Predicting
ToApi = (
    Access
    | Settings
    | Serving
    | Gauges
    | Ping
    | SequenceStarted
    | PromptLogprobs
    | Tokens
    | SequenceEnded
    | RequestRejected
)
