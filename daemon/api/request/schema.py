"""The bodies of requests, as types. Every field may be null, as OpenAI's clients send them.

A range stands only here: decoding checks it, and `/openapi.json` shows it.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from daemon.api.request.tool_schema import FunctionName, ToolCalls, ToolChoice, Tools
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST

INT32_MAX = 2**31 - 1
MAX_LIST = 1024
"""Entries of `logit_bias` and `stop_token_ids`."""
MAX_DEADLINE_S = 86400.0

Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Limit = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Label = Annotated[str, Meta(max_length=1024)]
StopString = Annotated[str, Meta(max_length=1024)]
# `$` would let a line feed pass at the end.
BiasKey = Annotated[
    str, Meta(pattern=r"^[0-9]{1,9}(?![\s\S])", description="a token id of 1 to 9 digits")
]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]
TemplateValues = Annotated[dict[Label, Any], Meta(max_length=64)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Role = Literal["system", "developer", "user", "assistant", "tool"]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # ignored, as is the next one: usage comes at the end
    continuous_usage_stats: bool | None = None


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all kinds of `response_format`."""

    @property
    def type(self) -> str:
        """The kind, as clients write it."""
        return str(self.__struct_config__.tag)


class TextFormat(_Format, frozen=True, forbid_unknown_fields=True, tag="text"):
    """Plain text, the default."""


class JsonObjectFormat(_Format, frozen=True, forbid_unknown_fields=True, tag="json_object"):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema; it is always followed strictly, or refused if that is impossible."""

    schema: dict[str, msgspec.Raw]
    name: FunctionName
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(_Format, frozen=True, forbid_unknown_fields=True, tag="json_schema"):
    """JSON that a schema describes."""

    json_schema: JsonSchema


class GrammarFormat(_Format, frozen=True, forbid_unknown_fields=True, tag="grammar"):
    """Text that a context-free grammar describes, in llguidance's dialect of Lark."""

    grammar: Annotated[str, Meta(min_length=1)]


class RegexFormat(_Format, frozen=True, forbid_unknown_fields=True, tag="regex"):
    """Text that a regular expression matches as a whole."""

    regex: Annotated[str, Meta(min_length=1)]


Pattern = Annotated[str, Meta(min_length=1)]
Choices = Annotated[list[Pattern], Meta(min_length=1, max_length=MAX_LIST)]
ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | GrammarFormat | RegexFormat


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`structured_outputs`, as in vLLM: one of its fields sets the answer's form."""

    json: str | dict[str, msgspec.Raw] | None = None  # a schema, or its text
    json_object: bool | None = None
    choice: Choices | None = None
    regex: Pattern | None = None
    grammar: Pattern | None = None


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message. `tool_calls` are an assistant's; `tool_call_id` names the call of a tool's result.

    `reasoning_content`, also called `reasoning`, is an assistant's reasoning before its answer. The
    other fields after `name` come back from earlier answers and must be empty.
    """

    role: Role
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[msgspec.Raw] | None = None
    tool_calls: ToolCalls | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: None = None
    audio: None = None


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of both kinds of completion."""

    model: str | None = None  # null or empty: the one that is served
    max_tokens: Limit | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None  # -1 and 0: all tokens
    min_p: Share | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES_PER_REQUEST)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_LIST)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10.0)] | None = None
    logit_bias: Annotated[dict[BiasKey, Bias], Meta(max_length=MAX_LIST)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None  # null: yes
    min_tokens: Count | None = None
    max_repeated_tokens: Count | None = None  # of one piece, again and again; 0: no bound
    priority: Annotated[int, Meta(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    deadline_s: Annotated[float, Meta(gt=0.0, le=MAX_DEADLINE_S)] | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    # As in vLLM; at most one of these and `response_format`.
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, msgspec.Raw] | None = None
    guided_choice: Choices | None = None
    guided_regex: Pattern | None = None
    guided_grammar: Pattern | None = None
    # Taken and ignored: they are about OpenAI's own service.
    store: bool | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=64)] | None = None
    service_tier: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None


class CompletionRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`. A prompt is text or token ids, or a list of either."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    max_tokens: Count | None = None  # 0: the prompt alone, with `echo`
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class ChatRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=16)] | None = None
    add_generation_prompt: bool | None = None  # null: yes
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None
    reasoning_effort: Effort | None = None  # a value for the template, too
    # Taken and ignored: predicted outputs and verbosity are not supported.
    prediction: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    audio: None = None
    web_search_options: None = None


class TokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /tokenize`: either `prompt` or `messages`."""

    model: str | None = None  # null or empty: the one that is served
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # null: to a prompt; chat templates write their own
    add_generation_prompt: bool | None = None  # null: yes
    continue_final_message: bool | None = None
    tools: Tools | None = None  # described in the conversation
    chat_template_kwargs: TemplateValues | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[TokenId]
    model: str | None = None  # null or empty: the one that is served
