"""Grammars that would take all time, memory or stack: a 400 that says so, and nobody is harmed."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from daemon.models.grammar import BROKEN_OFF
from tests.api.scripted import MODEL, ScriptedRuntime
from tests.api.waiting import until_ready

pytestmark = pytest.mark.asyncio(loop_scope="session")

NESTED = "((((a{1,100}){1,100}){1,100}){1,100})"


def schema(found: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": found}}


def deep(levels: int) -> dict[str, Any]:
    """Objects in objects."""
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"type": "object", "properties": {"a": found}, "required": ["a"]}
    return found


def nested_items(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string", "minLength": 50, "maxLength": 50}
    for _ in range(levels):
        found = {"type": "array", "items": found, "minItems": 100, "maxItems": 100}
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def process(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A ready API process, whose model has room for schemas in words."""
    async with ScriptedRuntime(folder, body_limit_bytes=2_000_000) as made:
        await until_ready(made.url)
        made.change(max_len=500_000)
        yield made


FORMATS: dict[str, dict[str, Any]] = {
    "regex repeats": {"type": "regex", "regex": NESTED},
    "regex repeats more": {"type": "regex", "regex": f"({NESTED}){{1,1000}}"},
    "regex looks ahead": {"type": "regex", "regex": "(?=a)b"},
    "regex refers back": {"type": "regex", "regex": r"(a)\1"},
    "regex does not end": {"type": "regex", "regex": "(" * 50_000},
    "regex of alternatives": {"type": "regex", "regex": "|".join("ab" * 30 for _ in range(900))},
    "regex with a slash": {"type": "regex", "regex": "a/\nb: %json"},
    "lark repeats": {"type": "grammar", "grammar": f"start: /{NESTED}/"},
    "lark counts": {"type": "grammar", "grammar": 'start: ((("a"{1,100}){1,100}){1,100}){1,100}'},
    "lark counts high": {"type": "grammar", "grammar": 'start: "a"{1,1000000000}'},
    "lark is too large": {"type": "grammar", "grammar": "start: A\nA: " + '"a" | ' * 25_000},
    "lark imports": {"type": "grammar", "grammar": "%import common.NOTHING\nstart: NOTHING"},
    "lark imports a file": {"type": "grammar", "grammar": "%import .passwd (root)\nstart: root"},
    "lark has a directive": {"type": "grammar", "grammar": '%frobnicate x\nstart: "a"'},
    "lark holds bad JSON": {"type": "grammar", "grammar": "start: %json {"},
    "lark holds a bad schema": {"type": "grammar", "grammar": 'start: %json {"type": "frob"}'},
    "lark has a zero byte": {"type": "grammar", "grammar": "start: \x00"},
    "lark opens only": {"type": "grammar", "grammar": "start: " + "(" * 60_000},
    "schema is long": schema({"type": "string", "minLength": 1_000_000_000}),
    "schema has many items": schema(nested_items(6)),
    "schema has a pattern": schema({"type": "string", "pattern": NESTED}),
    "schema looks ahead": schema({"type": "string", "pattern": "(?=a)b"}),
    "schema is deep": schema(deep(300)),
    "schema refers to itself": schema({"$ref": "#"}),
    "schema refers in circles": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "schema refers to nothing": schema({"$ref": "#/$defs/none"}),
    "schema refers elsewhere": schema({"$ref": "http://127.0.0.1:1/x.json"}),
    "schema has a huge enum": schema({"enum": [f"word {n} " * 3 for n in range(5_000)]}),
    "schema multiplies": schema({"type": "number", "multipleOf": 1e-300}),
    "schema is no schema": schema({"type": ["frob", 7]}),
    "schema has big numbers": schema({"type": "integer", "minimum": 10**400}),
}
MAY_PASS = {
    "lark counts",
    "lark counts high",
    "lark is too large",
    "regex of alternatives",
    "regex with a slash",
    "schema has many items",
    "schema has a pattern",
    "schema is long",
}
"""Following these costs a worker no more than others do."""
ORDINARY = {
    "regex repeats",
    "regex refers back",
    "regex does not end",
    "lark opens only",
    "lark holds bad JSON",
    "schema is deep",
    "schema refers to itself",
    "schema refers elsewhere",
    "schema is no schema",
}
"""One of each kind, and quickly told."""


def cases(names: Iterable[str]) -> list[Any]:
    """Cases of these names, all but the ordinary ones for soak runs."""
    return [
        pytest.param(name, marks=() if name in ORDINARY else pytest.mark.soak) for name in names
    ]


async def told(http: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and error of a chat."""
    chat = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}
    async with http.post("/v1/chat/completions", json={**chat, **body}) as answer:
        return answer.status, (await answer.json()).get("error") or {}


@pytest.mark.parametrize("name", cases(FORMATS))
async def test_a_format(runtime: ScriptedRuntime, http: aiohttp.ClientSession, name: str) -> None:
    status, _error = await told(http, {"response_format": FORMATS[name]})
    if name not in MAY_PASS:
        assert status == 400
    assert status in (200, 400)


@pytest.mark.parametrize("name", cases(name for name in FORMATS if name.startswith("schema")))
async def test_a_tool(runtime: ScriptedRuntime, http: aiohttp.ClientSession, name: str) -> None:
    parameters = {
        "type": "object",
        "properties": {"x": FORMATS[name]["json_schema"]["schema"]},
        "required": ["x"],
    }
    function = {"name": "f", "parameters": parameters, "strict": True}
    tools = [{"type": "function", "function": function}]
    status, _error = await told(http, {"tools": tools, "tool_choice": "required"})
    assert status in (200, 400)


async def test_one_that_breaks_off_is_the_request_s_fault(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    runtime.fail_at, runtime.fail_with = 1, f"{BROKEN_OFF}it is too complex"
    status, error = await told(http, {"response_format": {"type": "regex", "regex": "a+"}})
    assert (status, error["param"], error["code"]) == (400, "response_format", "invalid_grammar")
    assert "too complex" in error["message"]
    assert BROKEN_OFF not in error["message"]
    assert (await told(http, {}))[0] == 500


async def test_a_line_feed_at_the_end_is_no_part_of_a_number_or_a_name(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    status, error = await told(http, {"logit_bias": {"1\n": 1}})
    assert (status, error["param"]) == (400, "logit_bias")
    form = {"type": "json_schema", "json_schema": {"name": "x\n", "schema": {}}}
    status, error = await told(http, {"response_format": form})
    assert (status, error["param"]) == (400, "response_format.json_schema.name")
