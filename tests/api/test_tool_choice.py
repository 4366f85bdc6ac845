"""What a request lets the model call, and what its answer is held to."""

import json
from typing import Any

import msgspec
import pytest

from daemon.api.replies.errors import ApiError
from daemon.api.request.json_schema import MAX_DEPTH
from daemon.api.request.schema import ChatRequest
from daemon.api.text.markers import MarkerTokens
from daemon.api.tools.choice import MAX_TOOLS_BYTES, Toolbox, offered, toolbox
from daemon.api.tools.format import LLAMA, SMOLLM, Format

TOKENS = MarkerTokens({}, {7: "<|python_tag|>"}, ())
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def boxed(form: Format = SMOLLM, tokens: MarkerTokens = TOKENS, **fields: Any) -> Toolbox | None:
    """The toolbox of a request with these fields."""
    body = {"model": "m", "messages": [{"role": "user"}], "tools": [tool()], **fields}
    request = msgspec.json.decode(json.dumps(body), type=ChatRequest)
    return toolbox(request, offered(request), form, tokens)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth - 1):
        schema = {"type": "object", "items": schema}
    return schema


@pytest.mark.parametrize("fields", [{"tools": None}, {"tools": []}, {"tool_choice": "none"}])
def test_without_tools_there_is_nothing_to_read(fields: dict[str, Any]) -> None:
    assert boxed(**fields) is None


def test_only_what_is_asked_for_costs_a_grammar() -> None:
    for fields in ({}, {"tool_choice": "auto"}, {"response_format": {"type": "text"}}):
        box = boxed(**fields)
        assert box is not None and box.grammar == ""
        assert (box.names, box.bare, box.shown) == ({"f"}, False, TOKENS.hidden)
    for fields in (
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"parallel_tool_calls": False},
        {"tools": [tool(strict=True)]},
        {"response_format": {"type": "json_object"}},
    ):
        box = boxed(**fields)
        assert box is not None and box.grammar.startswith("start: ")


def test_a_named_function_is_the_only_one_that_is_read() -> None:
    named = {"type": "function", "function": {"name": "g"}}
    box = boxed(tools=[tool(), tool(name="g")], tool_choice=named)
    assert box is not None and box.names == {"g"}


def test_a_format_of_the_answer_goes_with_tools_where_both_can_be_told_apart() -> None:
    box = boxed(response_format=SCHEMA_FORMAT)
    assert box is not None and "| answer" in box.grammar
    required = boxed(LLAMA, response_format=SCHEMA_FORMAT, tool_choice="required")
    assert required is not None and "answer" not in required.grammar
    assert boxed(response_format={"type": "regex", "regex": "a"}, tool_choice="none") is None
    for form, other in ((LLAMA, SCHEMA_FORMAT), (SMOLLM, {"type": "regex", "regex": "a"})):
        with pytest.raises(ApiError, match=other["type"]) as caught:
            boxed(form, response_format=other)
        assert caught.value.param == "response_format"


def test_a_schema_that_python_cannot_write_is_refused() -> None:
    deep = {"type": "json_schema", "json_schema": {"name": "a", "schema": nested(MAX_DEPTH + 1)}}
    with pytest.raises(ApiError) as caught:
        boxed(response_format=deep)
    assert caught.value.param == "response_format.json_schema.schema"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
def test_a_reference_that_leads_nowhere_is_named_with_its_path(choice: Any) -> None:
    dangling = {"type": "object", "properties": {"city": {"items": {"$ref": "#/$defs/City"}}}}
    with pytest.raises(ApiError) as caught:
        boxed(tools=[tool(), tool(name="g", parameters=dangling)], tool_choice=choice)
    where = "tools[1].function.parameters"
    assert caught.value.param == where
    said = f"`{where}.properties.city.items` has a `$ref` '#/$defs/City' that leads to nothing"
    assert caught.value.message.startswith(said)


def test_tools_have_limits() -> None:
    assert boxed(tools=[tool(parameters=nested(MAX_DEPTH))]) is not None
    for param, tools in (
        ("tools", [tool(description="x" * MAX_TOOLS_BYTES)]),
        ("tools[0].function.parameters", [tool(parameters=nested(MAX_DEPTH + 1))]),
    ):
        with pytest.raises(ApiError) as caught:
            boxed(tools=tools)
        assert (caught.value.status, caught.value.param) == (400, param)
