"""`response_format`: what becomes a grammar, what is refused, and what hostile ones can do."""

import asyncio
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest

from daemon.protocol.api import Generate, Tokens
from daemon.state.request import FinishReason, sequence_id
from daemon.wire.columns import int32
from tests.api.scripted import MODEL, ScriptedRuntime

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"name": "thing", "schema": SCHEMA}
CHAIN = [f"r{i}: r{i + 1}" for i in range(6000)]
TOO_DEEP = "\n".join(["start: r0", *CHAIN, 'r6000: "z"'])
AMBIGUOUS = "start: s\ns: " + " | ".join("s " * count for count in range(1, 40)) + ' | "a" | '


def body(form: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hello", "max_tokens": 4, "response_format": form, **fields}


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": fields}}


async def post(http: aiohttp.ClientSession, asked: Any) -> tuple[int, dict[str, Any]]:
    async with http.post("/v1/completions", json=asked) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("form", "within"),
    [
        ({"type": "json_object"}, '"type":"object"'),
        ({"type": "json_schema", "json_schema": NAMED}, '"required":["a"]'),
        (
            {"type": "json_schema", "json_schema": {**NAMED, "strict": True, "description": "d"}},
            '"properties":{"a":{"type":"integer"}}',
        ),
        ({"type": "grammar", "grammar": 'start: "yes" | "no"'}, 'start: "yes"'),
        ({"type": "regex", "regex": "[0-9]{4}"}, "[0-9]{4}"),
    ],
)
async def test_forms_become_grammars(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, form: Any, within: str
) -> None:
    status, answer = await post(http, body(form))
    assert status == 200, answer
    (sent,) = runtime.of(Generate)
    assert within in sent.sampling.grammar


@pytest.mark.parametrize("form", [None, {"type": "text"}])
async def test_plain_text_has_none(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, form: Any
) -> None:
    status, _answer = await post(http, body(form, ignore_eos=True))
    assert status == 200
    assert runtime.of(Generate)[0].sampling.grammar == ""


async def test_the_official_client_asks_in_a_chat(
    runtime: ScriptedRuntime, client: openai.AsyncOpenAI
) -> None:
    form: Any = {"type": "json_schema", "json_schema": NAMED}
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=4,
        response_format=form,
    )
    assert answer.choices[0].message.content
    assert '"required":["a"]' in runtime.of(Generate)[0].sampling.grammar


@pytest.mark.parametrize(
    ("form", "param", "said"),
    [
        ({"type": "yaml"}, "response_format.type", "yaml"),
        ({"type": "text", "json_schema": NAMED}, "response_format.json_schema", "unknown field"),
        ({"type": "json_schema"}, "response_format.json_schema", "required"),
        (
            {"type": "json_schema", "json_schema": {"name": "a"}},
            "response_format.json_schema.schema",
            "required",
        ),
        (
            {"type": "json_schema", "json_schema": {**NAMED, "extra": 1}},
            "response_format.json_schema.extra",
            "unknown field",
        ),
        (
            {"type": "json_schema", "json_schema": {**NAMED, "schema": True}},
            "response_format.json_schema.schema",
            "object",
        ),
        (
            schema(type="array", uniqueItems=True),
            "response_format",
            "keywords that cannot be followed: `uniqueItems`",
        ),
        (
            schema(type="number", minimum=1e18),
            "response_format",
            "numbers cannot be held to `minimum` 1e18: too many digits",
        ),
        (schema(type="string", pattern="("), "response_format", "the regular expression cannot be"),
        (schema(type="object", required=5), "response_format", "`required` must be of type array"),
        (
            schema(type="integer", minimum=10**20),
            "response_format.json_schema.schema",
            "`response_format.json_schema.schema.minimum` is 100000000000000000000",
        ),
        (schema(type="wat"), "response_format", "wat"),
        (
            schema(**{"$ref": "file:///etc/passwd"}),
            "response_format.json_schema.schema",
            "'file:///etc/passwd' that leads to nothing in this schema",
        ),
        (schema(**{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}), "", ""),
        ({"type": "grammar", "grammar": ""}, "response_format.grammar", "at least 1 letter"),
        ({"type": "grammar", "grammar": "start: nowhere"}, "response_format", "nowhere"),
        ({"type": "grammar", "grammar": "x" * 140_000}, "response_format", "bytes"),
        ({"type": "grammar", "grammar": TOO_DEEP}, "response_format", "too deep"),
        ({"type": "grammar", "grammar": AMBIGUOUS}, "response_format", ""),
        ({"type": "regex", "regex": "(a"}, "response_format", "unclosed"),
        ({"type": "regex", "regex": "(a?){5000}a{5000}"}, "response_format", "too many"),
    ],
)
async def test_what_cannot_be_followed_is_refused(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, form: Any, param: str, said: str
) -> None:
    status, answer = await post(http, body(form))
    assert status == 400, answer
    assert answer["error"]["param"] == (param or "response_format")
    assert said in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 500
    assert not runtime.of(Generate)


async def test_a_grammar_says_when_to_end(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    status, answer = await post(http, body({"type": "json_object"}, ignore_eos=True))
    assert status == 400
    assert answer["error"]["param"] == "ignore_eos"
    assert not runtime.of(Generate)


async def test_an_engine_that_cannot_follow_fails_that_request_alone(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    runtime.paused = True

    async def asked() -> tuple[int, dict[str, Any]]:
        return await post(http, body({"type": "regex", "regex": "[ab]+"}, n=2))

    waiting = asyncio.create_task(asked())
    (sent,) = await runtime.until(Generate)
    rows = np.array([sequence_id(sent.request, stream) for stream in range(2)])
    reasons = np.array([FinishReason.NONE, FinishReason.ERROR], np.uint8)
    runtime.send(Tokens(rows, int32([5, 6]), reasons, errors=((1, "its grammar is lost"),)))
    status, answer = await waiting
    assert status == 500
    assert answer["error"]["message"] == "its grammar is lost"
