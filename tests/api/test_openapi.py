"""The server's own description: valid, complete, and what the server really does."""

import itertools
import json
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema_rs
import msgspec
import pytest
import schemathesis
from aiohttp import web

from daemon.api.front.about import AboutRoutes
from daemon.api.front.routes import Api
from daemon.api.replies.answers import ChatChunk, ChatCompletion, Completion, CompletionChunk
from daemon.protocol.api import Generate
from daemon.state.request import FinishReason
from tests.api.conformance import (
    ACCEPTED_CHECKS,
    CHECKS,
    REFUSED_CHECKS,
    answered,
    described,
    of_types,
    run,
)
from tests.api.scripted import MODEL, Answer, ScriptedRuntime

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOM = 65536
"""Tokens of a context that no conversation of schemathesis fills."""
STEADY = ("--seed", "1", "--generation-database", "none")


def short(message: Generate, _stream: int) -> Answer:
    """Four tokens of the prompt, or as many as may be."""
    count = min(4, message.max_tokens)
    for index, token in enumerate(
        itertools.islice(itertools.cycle(message.tokens.tolist()), count)
    ):
        yield token, FinishReason.LENGTH if index + 1 == count else FinishReason.NONE


async def test_the_document_is_valid_openapi_and_names_every_route(runtime: ScriptedRuntime):
    document = await described(runtime.url)
    schemathesis.openapi.from_dict(document).validate()
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    assert document["openapi"].startswith("3.1")
    described_routes = {
        (method.upper(), path) for path, one in document["paths"].items() for method in one
    }
    assert described_routes == routes()
    assert {("POST", "/v1/chat/completions"), ("GET", "/v1/models/{id}")} < described_routes
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names)
    temperature = document["components"]["schemas"]["ChatRequest"]["properties"]["temperature"]
    assert temperature["anyOf"][0] == {"type": "number", "minimum": 0.0, "maximum": 2.0}


def routes() -> set[tuple[str, str]]:
    """Method and path of every route; HEAD comes with GET."""
    router = web.UrlDispatcher()
    for kind in (Api, AboutRoutes):
        kind.__new__(kind).add_routes(router)
    found = {(one.method, one.resource.canonical) for one in router.routes() if one.resource}
    return {(method, path) for method, path in found if method != "HEAD"}


ASKED: list[tuple[str, dict[str, Any], type, type]] = [
    ("/v1/completions", {"prompt": "hello"}, Completion, CompletionChunk),
    ("/v1/completions", {"prompt": ["hello", "one"], "logprobs": 2}, Completion, CompletionChunk),
    ("/v1/completions", {"prompt": "hello", "echo": True}, Completion, CompletionChunk),
    ("/v1/chat/completions", {"n": 2}, ChatCompletion, ChatChunk),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}, ChatCompletion, ChatChunk),
]


@pytest.mark.parametrize(("path", "fields", "whole", "piece"), ASKED)
async def test_completions_have_the_fields_that_are_described(
    runtime: ScriptedRuntime,
    http: aiohttp.ClientSession,
    path: str,
    fields: dict[str, Any],
    whole: type,
    piece: type,
):
    body = {"model": MODEL, "max_tokens": 6, **fields}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": "hello"}]
    async with http.post(path, json=body) as got:
        assert same(await got.read(), whole)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with http.post(path, json=body) as got:
        events = [line[6:] for line in (await got.read()).split(b"\n") if line[:6] == b"data: "]
    assert events[-1] == b"[DONE]" and len(events) > 3
    assert all(same(event, piece) for event in events[:-1])


def same(data: bytes, kind: type) -> bool:
    """Whether all fields of some JSON, and no others, are those of its type."""
    return msgspec.to_builtins(msgspec.json.decode(data, type=kind)) == json.loads(data)


async def test_what_schemathesis_makes_of_it_conforms(runtime: ScriptedRuntime, tmp_path: Path):
    runtime.script = short
    document = answered(await described(runtime.url), MODEL)
    checks = ",".join(CHECKS + ACCEPTED_CHECKS)
    flags = ("--checks", checks, "--phases", "fuzzing", "-m", "positive", "-n", "12")
    found = await run(document, runtime.url, tmp_path, *flags, *STEADY)
    assert not found.said, found.said
    assert found.num_cases >= 40
    assert len(runtime.of(Generate)) > found.num_cases / 3


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["positive", "negative", "all"])
async def test_twenty_thousand_cases_conform(runtime: ScriptedRuntime, tmp_path: Path, mode: str):
    runtime.script = short
    runtime.change(max_len=ROOM, context_len=ROOM)
    document = await described(runtime.url)
    checks: tuple[str, ...] = CHECKS
    if mode == "positive":
        document = answered(document, MODEL)
        checks = CHECKS + ACCEPTED_CHECKS
    else:
        document = of_types(document, MODEL)
        checks = CHECKS + REFUSED_CHECKS
    count = "1750" if mode == "positive" else "800"  # of each operation: 4 or 12 of them
    phases = "fuzzing" if mode == "positive" else "coverage,fuzzing"
    found = await run(
        document,
        runtime.url,
        tmp_path,
        *("--checks", ",".join(checks), "--phases", phases, "-n", count, "-m", mode, *STEADY),
    )
    assert not found.said, found.said
    assert found.num_cases > 6000  # three modes: twenty thousand


@pytest.mark.soak
async def test_a_false_description_is_found_out(runtime: ScriptedRuntime, tmp_path: Path):
    runtime.script = short
    document = answered(await described(runtime.url), MODEL)
    del document["paths"]["/v1/completions"]
    properties = document["components"]["schemas"]["ChatChunk"]["properties"]
    properties["object"] = {"const": "another"}
    flags = ("--checks", ",".join(CHECKS), "--phases", "fuzzing", "-n", "40", *STEADY)
    found = await run(document, runtime.url, tmp_path, *flags)
    assert "SSE event violates schema" in found.said
