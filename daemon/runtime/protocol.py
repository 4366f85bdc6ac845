"""Messages between the API process and the runtime: one frozen, tagged struct each.

API -> runtime: `Generate`, `Sealed`, `Finish`, `Abort`; where lengths are predicted also
`Predicted` and `Predicting`.
Runtime -> API: `Serving` (first, and on every change), then `Rejected` or, for each sequence,
`Started`, `Tokens`, and at the end a reason in `Tokens` or one `Finished`.
"""

import msgspec

from daemon.control.protocol import PredictorStatus
from daemon.engine.protocol import Logprobs
from daemon.request import SamplingParams
from daemon.wire.columns import Column


class Generate(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A validated, tokenized request."""

    request: int  # id, chosen by the API process, never reused
    tokens: Column  # int32 [prompt length >= 1]
    max_tokens: int  # >= 1; len(tokens) + max_tokens <= Serving.max_len
    n: int  # token streams; <= MAX_SEQUENCES_PER_REQUEST
    priority: int  # lower runs first; 0 is the default
    sampling: SamplingParams  # of stream 0; the runtime derives the others' seeds
    hashes: bytes  # chain hashes of the full prompt blocks, 16 bytes each (memory/hashing.py)


class Sealed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Generated tokens filled further blocks: their chain hashes, for the prefix cache."""

    sequence: int
    first_block: int  # index of the first of them in the sequence
    hashes: bytes  # 16 bytes each


class Finish(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A stop string was found in the text: the sequence ends; later tokens are discarded."""

    sequence: int
    at_token: int  # output tokens that count


class Abort(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The client went away: end every sequence of the request."""

    request: int


class Predicted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How long a request's answers will be; it was sent before, and may be over by now."""

    request: int
    num_tokens: int  # of output, the middle of what may come
    high_tokens: int  # nine answers in ten are no longer


class Predicting(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How prediction does: at first, and now and then while there is something new."""

    status: PredictorStatus


class Serving(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What is served, and whether requests are taken now."""

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


class Started(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A sequence got its first place in a batch."""

    sequence: int
    num_cached_tokens: int  # prompt tokens found in the prefix cache


class Tokens(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One step's new tokens of this API process's sequences."""

    sequences: Column  # int64 [T]
    tokens: Column  # int32 [T]
    reasons: Column  # uint8 [T]: FinishReason; not NONE: the sequence has ended with this token
    logprobs: Logprobs | None = None  # rows index this message's T


class Finished(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A sequence ended without a further token (finish, abort, error)."""

    sequence: int
    reason: int  # FinishReason
    error: str = ""


class Rejected(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The request was not taken; nothing of it is kept."""

    request: int
    kind: str  # "queue_full" | "too_long" | "draining" | "not_ready"
    message: str
    retry_after_s: float  # estimated wait for queue_full; 0: retrying will not help


FromApi = Generate | Sealed | Finish | Abort | Predicted | Predicting
ToApi = Serving | Started | Tokens | Finished | Rejected
