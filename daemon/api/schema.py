"""The bodies of requests, as types. Every field may be null, as OpenAI's clients send them."""

from typing import Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format`; only plain text is served."""

    type: str


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message; the fields after `name` come back from earlier answers and must be empty."""

    role: Role
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[msgspec.Raw] | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: None = None
    audio: None = None


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What both kinds of completion share."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    priority: int | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None


class CompletionRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`. A prompt is text or token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class ChatRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
