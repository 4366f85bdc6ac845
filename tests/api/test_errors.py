"""Every refusal has OpenAI's shape, the right status and names its field."""

import asyncio
import json
import re
from typing import Any

import aiohttp
import openai
import pytest

from daemon.protocol.api import AbortRequest, Generate, RequestRejected
from daemon.state.request import NO_PLACE
from tests.api.scripted import MAX_LEN, MODEL, ScriptedRuntime, two_and_no_more

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = [{"role": "user", "content": "hello"}]
COMPLETION = {"model": MODEL, "prompt": "hello"}
CHAT = {"model": MODEL, "messages": HELLO}

BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": 2.5}),
    ("temperature", {"temperature": "warm"}),
    ("temperature", {"temperature": 10**400}),
    ("top_p", {"top_p": 0}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": 1.5}),
    ("n", {"n": 129}),
    ("n", {"n": 0}),
    ("n", {"n": 10**5000}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 10**5000}),
    ("max_tokens", {"max_tokens": 1.5}),
    ("min_tokens", {"min_tokens": -1}),
    ("seed", {"seed": 2**64}),
    ("priority", {"priority": 2**40}),
    ("deadline_s", {"deadline_s": 0}),
    ("deadline_s", {"deadline_s": 86401}),
    ("presence_penalty", {"presence_penalty": -3}),
    ("frequency_penalty", {"frequency_penalty": 3}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("repetition_penalty", {"repetition_penalty": 5e-324}),  # logits over this are infinite
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"1": 101}}),
    ("logit_bias", {"logit_bias": {"400": 1}}),
    ("stop", {"stop": ["a"] * 17}),
    ("stop_token_ids", {"stop_token_ids": [400]}),
    ("response_format.type", {"response_format": {"type": "yaml"}}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("stream_options.more", {"stream": True, "stream_options": {"more": 1}}),
    ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    ("min_tokens", {"min_tokens": 10**6}),
    ("best_of", {"best_of": 2}),
    ("functions", {"functions": []}),
    ("surprise", {"surprise": 1}),
]


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """The status and the `error` object; the body may be bytes."""
    data = body if isinstance(body, bytes) else big_json(body)
    async with http.post(path, data=data) as response:
        assert response.content_type == "application/json"
        error = (await response.json())["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        return response.status, error


def big_json(body: Any) -> bytes:
    """JSON of whole numbers of any length, which Python refuses to write."""
    if isinstance(body, dict):
        return b"{%b}" % b",".join(b"%b:%b" % (big_json(k), big_json(v)) for k, v in body.items())
    if isinstance(body, int) and not isinstance(body, bool) and body >= 10**400:
        return b"1" + b"0" * (400 if body == 10**400 else 5000)
    return json.dumps(body).encode()


@pytest.mark.parametrize(("param", "fields"), BAD_FIELDS)
async def test_bad_fields(runtime, http: aiohttp.ClientSession, param: str, fields: dict[str, Any]):
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        status, error = await post(http, path, {**body, **fields})
        assert (status, error["param"]) == (400, param)
        assert error["type"] == "invalid_request_error"
    assert not runtime.received


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        ("/v1/completions", "prompt", {"model": MODEL}),
        ("/v1/completions", "prompt", {**COMPLETION, "prompt": []}),
        ("/v1/completions", "prompt", {**COMPLETION, "prompt": [[]]}),
        ("/v1/completions", "prompt", {**COMPLETION, "prompt": ["a", 1]}),
        ("/v1/completions", "prompt", {**COMPLETION, "prompt": [400]}),
        ("/v1/completions", "prompt", {**COMPLETION, "prompt": ["a"] * 129}),
        ("/v1/completions", "suffix", {**COMPLETION, "suffix": "end"}),
        ("/v1/completions", "logprobs", {**COMPLETION, "logprobs": 21}),
        ("/v1/chat/completions", "messages", {**CHAT, "messages": []}),
        ("/v1/chat/completions", "top_logprobs", {**CHAT, "top_logprobs": 1}),
        (
            "/v1/chat/completions",
            "messages[0].role",
            {**CHAT, "messages": [{"role": "king", "content": "x"}]},
        ),
        (
            "/v1/chat/completions",
            "messages[0].tool_calls[0].id",
            {**CHAT, "messages": [{"role": "assistant", "tool_calls": [{}]}]},
        ),
    ],
)
async def test_bad_bodies(runtime, http: aiohttp.ClientSession, path: str, param: str, body: Any):
    status, error = await post(http, path, body)
    assert (status, error["param"]) == (400, param)
    assert not runtime.received


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b'{"model":"tiny","prompt":NaN}',
        b'{"model":"tiny","prompt":"\\ud800"}',
        b'{"model":"tiny","prompt":"\xff"}',
        b'{"model":"tiny","prompt":[1' + b"0" * 5000 + b",1]}",
        b'{"model":"tiny","prompt":"x","temperature":1e999}',
        b'{"model":"tiny","prompt":"x","logit_bias":{"1":Infinity}}',
        b'{"model":"tiny","prompt":' + b"[" * 50_000,
        b'{"model":"tiny","prompt":"x","tools":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"model":"tiny","messages":[{"role":"user","content":"x","annotations":[' + b"[" * 90_000,
    ],
)
async def test_bad_json(runtime, http: aiohttp.ClientSession, body: bytes):
    for path in ("/v1/completions", "/v1/chat/completions"):
        status, _error = await post(http, path, body)
        assert status == 400
    assert not runtime.received


async def test_context_length(runtime: ScriptedRuntime, http: aiohttp.ClientSession):
    too_much = [
        {**COMPLETION, "prompt": "one two " * 200},
        {**COMPLETION, "prompt": "x" * 190_000},
        {**COMPLETION, "prompt": [5] * MAX_LEN},
        {**COMPLETION, "max_tokens": MAX_LEN},
        {**COMPLETION, "prompt": [5] * (MAX_LEN - 10), "max_tokens": 11},
    ]
    for body in too_much:
        status, error = await post(http, "/v1/completions", body)
        assert (status, error["code"]) == (400, "context_length_exceeded")
    assert not runtime.received
    fits = {**COMPLETION, "prompt": [5] * (MAX_LEN - 10), "max_tokens": 10}
    async with http.post("/v1/completions", json=fits) as response:
        assert response.status == 200


async def test_unknown_model_and_addresses(runtime, client: openai.AsyncOpenAI, http):
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="other", messages=HELLO)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")
    assert (await post(http, "/v1/nothing", {}))[0] == 404
    assert (await post(http, "/v1/models", {}))[0] == 405
    async with http.get("/v1/completions") as response:
        assert response.status == 405 and response.headers["Allow"] == "POST"


async def test_body_limit(runtime, http: aiohttp.ClientSession):
    status, _error = await post(http, "/v1/completions", {**COMPLETION, "user": "x" * 200_001})
    assert status == 413


async def test_models(runtime: ScriptedRuntime, client: openai.AsyncOpenAI):
    listed = (await client.models.list()).data
    assert [model.id for model in listed] == [MODEL]
    assert listed[0].root == str(runtime.root) and listed[0].max_model_len == MAX_LEN
    assert (await client.models.retrieve("tiny-folder")).id == MODEL


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "status", "retry_after", "param"),
    [
        ("queue_full", 429, "3", None),
        ("too_long", 400, None, "prompt"),
        ("too_many", 400, None, "n"),
        ("draining", 503, "3", None),
        ("not_ready", 503, "3", None),
    ],
)
async def test_rejected(
    runtime, http, kind: str, status: int, retry_after: str | None, param: str | None, stream: bool
):
    runtime.reject = RequestRejected(0, kind, "no", 2.2)
    body = {**COMPLETION, "stream": stream, "prompt": ["hello", "one"]}
    async with http.post("/v1/completions", json=body) as response:
        assert response.status == status
        assert response.headers.get("Retry-After") == retry_after
        error = (await response.json())["error"]
        assert (error["message"], error["param"]) == ("no", param)
    await asyncio.sleep(0.05)
    # The second prompt may still run when the first is refused; the refused one does not.
    refused = runtime.of(Generate)[0].request
    assert refused not in [abort.request for abort in runtime.of(AbortRequest)]


async def test_a_chat_is_rejected_for_its_messages(runtime, http: aiohttp.ClientSession):
    runtime.reject = RequestRejected(0, "too_long", "no", 0.0)
    status, error = await post(http, "/v1/chat/completions", CHAT)
    assert (status, error["param"]) == (400, "messages")
    assert error["code"] == "context_length_exceeded"


async def test_engine_error(runtime: ScriptedRuntime, client: openai.AsyncOpenAI):
    runtime.fail_at = 3
    with pytest.raises(openai.InternalServerError, match="the engine broke"):
        await client.completions.create(model=MODEL, prompt="hello")
    runtime.script, runtime.fail_at = two_and_no_more, None
    stream = await client.completions.create(model=MODEL, prompt="hello world", stream=True)
    assert (await anext(stream)).choices[0].text
    runtime.fail_at = 1
    with pytest.raises(openai.APIError, match="the engine broke"):
        await anext(stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_only_a_lost_instance_could_hold_ends_with_a_503(
    runtime, http: aiohttp.ClientSession, stream: bool
):
    """One that waits still has its status; one that streams is told in its stream."""
    runtime.fail_at, runtime.fail_with = 0, NO_PLACE
    async with http.post("/v1/completions", json={**COMPLETION, "stream": stream}) as response:
        assert (response.status, response.headers.get("Retry-After")) == (503, "1")
        error = (await response.json())["error"]
    assert (error["message"], error["code"]) == (NO_PLACE, "instance_lost")
    runtime.script, runtime.fail_at = two_and_no_more, None
    body = {**COMPLETION, "prompt": "hello world", "stream": True}
    async with http.post("/v1/completions", json=body) as response:
        assert response.status == 200
        await response.content.readline()
        runtime.fail_at = 1
        said = (await response.content.read()).decode()
    assert NO_PLACE in said and "instance_lost" in said


async def test_request_id(runtime, http: aiohttp.ClientSession):
    async with http.post("/v1/completions", json=COMPLETION, headers={"X-Request-Id": "a-1"}) as r:
        assert r.headers["X-Request-Id"] == "a-1"
    body = {**COMPLETION, "stream": True}
    async with http.post("/v1/completions", json=body, headers={"X-Request-Id": "b\t2"}) as r:
        assert len(r.headers["X-Request-Id"]) == 32
        await r.read()


async def test_foreign_origin(runtime, http: aiohttp.ClientSession):
    headers = {"Origin": "http://evil.example"}
    async with http.post("/v1/completions", json=COMPLETION, headers=headers) as response:
        assert response.status == 403
        assert "Access-Control-Allow-Origin" not in response.headers
    assert not runtime.received


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/embeddings", "embeddings are not served here; this server has /v1/chat/completions"),
        ("/v1/responses", "OpenAI's Responses API is not served here; this server has /v1/chat"),
        ("/v1/images/generations", "images are not served here"),
        ("/v1/audio/speech", "speech is not served here"),
        ("/v1/moderations", "moderation is not served here"),
        ("/v1/files", "files are not served here"),
        ("/v1/batches", "batches are not served here"),
        ("/v1/assistants", "the Assistants API is not served here"),
        ("/v1/threads/t/runs", "the Assistants API is not served here"),
        ("/v1/fine_tuning/jobs", "fine-tuning is not served here"),
        ("/v1/vector_stores", "vector stores are not served here"),
        ("/v1/messages", "Anthropic's API is not served here"),
        ("/api/generate", "Ollama's API is not served here"),
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/engines/tiny/completions", "did you mean /v1/completions?"),
        ("/v1/status", "did you mean /status?"),
        ("/models", "did you mean /v1/models?"),
        ("/v1/completions/", "did you mean /v1/completions?"),
        ("/v1/chat/completions/", "did you mean /v1/chat/completions?"),
        ("/v1//chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/v1/completion", "did you mean /v1/completions?"),
        ("/v1/chat/completions/7", "what was stored of a chat is not served here"),
        ("/completion", "llama.cpp's own API is not served here"),
        ("/v2/surprise", "there is nothing at this address; this server has /v1/chat/completions"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_not_here_is_named(
    runtime, http: aiohttp.ClientSession, path: str, said: str, method: str
):
    async with http.request(method, path, json={}) as answer:
        assert answer.status == 404
        error = (await answer.json())["error"]
    assert said in error["message"] and error["code"] == "unknown_url"


async def test_another_method_is_named(runtime, http: aiohttp.ClientSession):
    async with http.get("/v1/chat/completions") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert (await answer.json())["error"]["message"] == "this address takes POST, not GET"
    async with http.post("/health", json={}) as answer:
        said = (await answer.json())["error"]["message"]
        assert said == "this address takes GET and HEAD, not POST"


INSIDE = re.compile(r"`(str|int|float|array|bool|object|null)\b[^`]*`|regex |[Ee]num|msgspec")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": 5}, "`temperature` must be a number from 0 to 2, and is 5"),
        ({"temperature": 10**400}, "`temperature` must be a number from 0 to 2"),
        ({"top_p": 0}, "`top_p` must be a number above 0 and at most 1, and is 0"),
        ({"n": 0}, "`n` must be a whole number from 1 to 128, and is 0"),
        ({"max_tokens": "5"}, '`max_tokens` must be a whole number of at least 1, and is "5"'),
        ({"max_tokens": 1.5}, "`max_tokens` must be a whole number of at least 1, and is 1.5"),
        ({"stop": 5}, "a string of at most 1024 letters or a list of at most 16 entries, and is 5"),
        ({"stop": ["a", 5]}, "`stop[1]` must be a string of at most 1024 letters, and is 5"),
        ({"logit_bias": {"x": 1}}, "a key of `logit_bias` must be a token id of 1 to 9 digits"),
        ({"logit_bias": {"1": "x"}}, "a value of `logit_bias` must be a number from -100 to 100"),
        (
            {"logit_bias": {"400": 1}},
            "`logit_bias` has the token 400, and the model has the tokens 0",
        ),
        ({"stop_token_ids": [400]}, "`stop_token_ids` has the token 400, and the model has the"),
        ({"messages": []}, "`messages` must be a list of at least 1 entry, and is an empty list"),
        ({"messages": [{"role": "king"}]}, "must be 'assistant', 'developer', 'system', 'tool' or"),
        ({"messages": [{"role": "user", "content": 5}]}, "a string or a list, and is 5"),
        ({"stream": "yes"}, '`stream` must be true or false, and is "yes"'),
        ({"tool_choice": "x"}, "`tool_choice` must be 'auto', 'none' or 'required' or an object"),
        ({"response_format": {"type": "x"}}, "'json_object', 'json_schema', 'grammar' or 'regex'"),
        ({"response_format": {"type": "regex", "regex": 5}}, "must be a string of at least 1 let"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "`tools[0].function.name` must be a name of 1 to 64 letters, digits, _ and -, and is",
        ),
        ({"metadata": {"a": 1}}, "a value of `metadata` must be a string of at most 1024 letters"),
        ({"audio": {}}, "`audio` is not supported; leave it out"),
        (
            {"user": "x" * 10, "seed": 2**64},
            "from -9223372036854775808 to 9223372036854775807",
        ),
    ],
)
async def test_a_refusal_says_what_came_and_what_is_taken(
    runtime, http: aiohttp.ClientSession, fields: dict[str, Any], said: str
):
    status, error = await post(http, "/v1/chat/completions", {**CHAT, **fields})
    assert status == 400 and said in error["message"]
    assert not INSIDE.search(error["message"]), error


@pytest.mark.parametrize("value", [5.0, 5])
async def test_whole_numbers_may_have_a_point(runtime, http: aiohttp.ClientSession, value: float):
    chat = {**CHAT, "max_tokens": value, "seed": 1e3, "temperature": 1.0, "n": 2.0}
    completion = {"prompt": [[5.0, 6.0]], "max_tokens": value}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", completion)):
        async with http.post(path, json=body) as answer:
            assert answer.status == 200, await answer.text()
    assert {asked.max_tokens for asked in runtime.of(Generate)} == {5}
