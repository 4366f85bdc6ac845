"""The bodies of answers, as types: `/openapi.json` says them, and the small ones are made of them.

Completions are encoded by hand in `shapes.py`, since they are made for every token; tests hold
them to these types.
"""

from typing import Literal

import msgspec

from daemon.models.generation import DefaultSampling


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong; `param` names the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success, and of an error in a stream."""

    error: ErrorDetail


class ModelCard(msgspec.Struct, frozen=True):
    """A model that is served."""

    id: str
    created: int
    root: str
    max_model_len: int  # tokens of prompt and answer; 0 while it is not known
    default_sampling: DefaultSampling  # what a request has where it says nothing
    object: Literal["model"] = "model"
    owned_by: str = "llmd"


class ModelList(msgspec.Struct, frozen=True):
    """`GET /v1/models`."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


class Health(msgspec.Struct, frozen=True):
    """`GET /health`."""

    status: Literal["alive", "stuck"]
    detail: str
    last_step_age_s: float | None  # null: no engine step was ever reported


class Version(msgspec.Struct, frozen=True):
    """`GET /version`."""

    version: str


class Readiness(msgspec.Struct, frozen=True):
    """`GET /ready`."""

    status: Literal["ready", "not ready"]
    detail: str


class Tokenized(msgspec.Struct, frozen=True):
    """`POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, frozen=True):
    """`POST /detokenize`."""

    prompt: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of a prompt's tokens, those whose KV was found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


FinishedFor = Literal["stop", "length"]
ChatFinishedFor = Literal["stop", "length", "tool_calls"]


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens of a place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """A token of a message, and the likeliest ones of its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`logprobs` of a message or of a piece of it."""

    content: list[ChatLogprob]
    refusal: None


class Called(msgspec.Struct, frozen=True):
    """A function that an answer calls; `arguments` is JSON as text."""

    name: str
    arguments: str


class Call(msgspec.Struct, frozen=True):
    """A call that an answer makes."""

    id: str
    type: Literal["function"]
    function: Called


class ChatMessage(msgspec.Struct, frozen=True):
    """What the assistant says; `content` is null where it only calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[Call] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishedFor


class ChatCompletion(msgspec.Struct, frozen=True):
    """`POST /v1/chat/completions`, not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[ChatChoice]
    usage: Usage


class CalledPiece(msgspec.Struct, frozen=True):
    """The name comes with a call's first piece, then its arguments bit by bit."""

    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class CallPiece(msgspec.Struct, frozen=True):
    """What a piece adds to the call of this index."""

    index: int
    function: CalledPiece
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """What a piece adds to a message."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallPiece] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishedFor | None


class ChatChunk(msgspec.Struct, frozen=True):
    """An event of a streamed chat completion; the one that carries `usage` has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`logprobs` of a text or of a piece of it; the lists are equally long."""

    tokens: list[str]
    token_logprobs: list[float | None]  # null: of a prompt's first token
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One answer of a completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishedFor


class Completion(msgspec.Struct, frozen=True):
    """`POST /v1/completions`, not streamed."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[CompletionChoice]
    usage: Usage


class CompletionPiece(msgspec.Struct, frozen=True):
    """A piece of one answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishedFor | None


class CompletionChunk(msgspec.Struct, frozen=True):
    """An event of a streamed completion; the one that carries `usage` has no choices."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[CompletionPiece]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
