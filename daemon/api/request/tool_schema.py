"""Tools in requests, as types: functions, the choice of them, and calls of earlier answers."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_TOOLS = 128
"""Tools of a request, and calls of one message."""

# `$` would let a line feed pass at the end.
FunctionName = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z0-9_-]{1,64}(?![\s\S])",
        description="a name of 1 to 64 letters, digits, _ and -",
    ),
]


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is the JSON schema of its arguments.

    Without `parameters` it takes none. `strict` holds every call to the schema.
    """

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `tools`; only functions are served."""

    type: Literal["function"]
    function: Function


class FunctionRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of one of the request's functions."""

    name: FunctionName


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tool_choice` that names the one function to call."""

    type: Literal["function"]
    function: FunctionRef


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function of an earlier call; `arguments` is JSON as text, or empty without any."""

    name: str
    arguments: str | None = None


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of an earlier answer; some clients keep the `index` that streams carry."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
ToolCalls = Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool
