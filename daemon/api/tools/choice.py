"""The functions that a request's answers may call, and must call."""

from typing import Any

import msgspec

from daemon.api.replies.errors import ApiError, invalid
from daemon.api.request.json_schema import MAX_DEPTH, decoded, followed, too_deep
from daemon.api.request.response_format import WHITESPACE, Wanted, wanted
from daemon.api.request.schema import ChatRequest, JsonObjectFormat, JsonSchemaFormat
from daemon.api.request.tool_schema import Function, NamedTool, Tool
from daemon.api.text.markers import MarkerTokens
from daemon.api.tools.format import Format
from daemon.api.tools.grammar import channelled, either, forced, held
from daemon.api.tools.reader import CallReader

MAX_TOOLS_BYTES = 256 * 1024
"""The size of all tools of a request, as JSON."""


class Toolbox(msgspec.Struct, frozen=True):
    """The functions that an answer may call, and the settings to find its calls."""

    names: frozenset[str]
    bare: bool  # an answer that begins with a brace is a call
    shown: dict[int, str]  # tokens that mark calls and that decoding would leave out
    grammar: str  # that the answer follows; empty: none
    only_calls: bool  # the grammar allows nothing else
    several: bool  # an answer may make more calls than one

    def reader(self) -> CallReader:
        """A reader for one answer."""
        return CallReader(self.names, self.bare, self.only_calls)


def offered(request: ChatRequest) -> list[Tool]:
    """The tools described to the model: all, or none. Raises ApiError 400."""
    tools = request.tools or []
    choice = request.tool_choice
    if not tools:
        if choice == "required" or isinstance(choice, NamedTool):
            raise invalid("`tool_choice` asks for a call, but there are no `tools`", "tool_choice")
        return []
    check_tools(tools)
    names = {tool.function.name for tool in tools}
    if isinstance(choice, NamedTool) and (name := choice.function.name) not in names:
        raise invalid(f"`tool_choice` names {name!r}, which is not in `tools`", "tool_choice")
    return [] if choice == "none" else tools


def toolbox(
    request: ChatRequest, tools: list[Tool], form: Format, tokens: MarkerTokens
) -> Toolbox | None:
    """The toolbox of `offered` tools and `parallel_tool_calls`; None without tools.

    Raises ApiError 400.
    """
    if not tools:
        return None
    choice = request.tool_choice
    named = choice.function.name if isinstance(choice, NamedTool) else ""
    is_forced = bool(named) or choice == "required"
    functions = [
        _kept(tool.function, f"tools[{index}].function.parameters", is_forced)
        for index, tool in enumerate(tools)
        if named in ("", tool.function.name)
    ]
    several = request.parallel_tool_calls is not False
    if named:
        grammar = forced(functions, form, tokens, several=False)
    elif choice == "required":
        grammar = forced(functions, form, tokens, several)
    else:
        grammar = _of_choice(request, functions, form, tokens, several)
    names = frozenset(function.name for function in functions)
    return Toolbox(
        names=names,
        bare=form.bare,
        shown=tokens.hidden,
        grammar=grammar,
        only_calls=is_forced,
        several=several,
    )


def _kept(function: Function, where: str, is_forced: bool) -> Function:
    """The function, with a schema that a grammar can follow if its calls must fit it.

    `where` is the schema's path. Raises ApiError 400.
    """
    if function.parameters is None or not (is_forced or function.strict):
        return function
    schema = {**function.parameters, "type": "object"}
    return msgspec.structs.replace(function, parameters=followed(schema, where))


def _of_choice(
    request: ChatRequest,
    functions: list[Function],
    form: Format,
    tokens: MarkerTokens,
    several: bool,
) -> str:
    """The grammar where the model may call or answer."""
    answer: dict[str, Any]
    any_strict = any(function.strict for function in functions)
    wanted_form = wanted(request)
    match wanted_form.form if wanted_form is not None else None:
        case None if form.within == "channels":
            return channelled(functions, tokens) if any_strict else ""
        case None if form.within:  # no grammar is to keep a model from calls of its own form
            return ""
        case None:
            return held(functions, form, tokens, several) if any_strict or not several else ""
        case JsonObjectFormat():
            answer = {"type": "object"}
        case JsonSchemaFormat(json_schema=given) if wanted_form is not None:
            answer = followed(
                decoded(given.schema, wanted_form.schema_field), wanted_form.schema_field
            )
        case _:
            raise _not_both(wanted_form)
    if form.bare:
        raise _not_both(wanted_form)
    own = answer.get("x-guidance")
    layout = {"whitespace_pattern": WHITESPACE, **(own if isinstance(own, dict) else {})}
    return either(functions, form, tokens, several, {**answer, "x-guidance": layout})


def _not_both(wanted_form: Wanted | None) -> ApiError:
    assert wanted_form is not None
    kind = f" {wanted_form.form.type!r}" if wanted_form.field == "response_format" else ""
    return invalid(
        f"`{wanted_form.field}`{kind} cannot be combined with `tools` here, "
        "unless `tool_choice` is 'none' or asks for a call",
        wanted_form.field,
    )


def check_tools(tools: list[Tool]) -> None:
    """Check that names differ, schemas describe objects, and the total size is allowed.

    Raises ApiError 400.
    """
    for index, tool in enumerate(tools):
        _check_schema(tool.function, f"tools[{index}].function.parameters")
    size_bytes = len(msgspec.json.encode(tools))
    if size_bytes > MAX_TOOLS_BYTES:
        raise invalid(
            f"`tools` may have {MAX_TOOLS_BYTES} bytes as JSON, not {size_bytes}", "tools"
        )
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}].function"
        if tool.function.name in seen:
            raise invalid(f"`{where}.name` stands twice: {tool.function.name!r}", f"{where}.name")
        seen.add(tool.function.name)


def _check_schema(function: Function, where: str) -> None:
    if too_deep(function.parameters or {}):
        raise invalid(f"`{where}` is nested deeper than {MAX_DEPTH}", where)
    kind = (function.parameters or {}).get("type", "object")
    if kind != "object":
        raise invalid(f"`{where}.type` must be 'object', not {str(kind)[:40]!r}", f"{where}.type")
