"""Keys: nothing without one, priority and quota with one, and caches of their own."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import openai
import pytest
import pytest_asyncio

from daemon.api.http.keyring import Keyring
from daemon.api.replies.errors import ApiError
from daemon.config.keys import hash_of, new_key
from daemon.config.schema import KeyConfig
from daemon.memory.hashing import chain_hashes, salt_digest, split_hashes
from daemon.protocol.api import AbortRequest, Access, Generate
from tests.api.scripted import BLOCK_SIZE, MODEL, ScriptedRuntime
from tests.api.test_disconnect import forever, quiet
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALICE, BOB, MINUTE, BUSY, THRIFTY = (new_key() for _ in range(5))
KEYS = (
    KeyConfig("alice", hash_of(ALICE)),
    KeyConfig("bob", hash_of(BOB).upper(), priority=5, slo_scale=2.5),
    KeyConfig("minute", hash_of(MINUTE), requests_per_minute=2),
    KeyConfig("busy", hash_of(BUSY), max_running=2),
    KeyConfig("thrifty", hash_of(THRIFTY), tokens_per_minute=100),
)
BODY = {"model": MODEL, "prompt": "hello there hello again", "max_tokens": 12}
# fmt: off
PATHS = [
    "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/tiny", "/tokenize",
    "/v1/detokenize", "/metrics", "/openapi.json", "/nothing", "/", "*", "//health", "/health/",
    "/Health", "/%68ealth", "/health%3f", "/ready;", "/health/../v1/models", "/./ready",
    "/v1//models", "/v1/models/../../health", "/ready%00", "/health#x", "http://localhost/health",
    "http://localhost/v1/models", "/v1/models?key=1", "/%2e%2e/ready", "/ready/x",
]
PAGE = {("GET", "/"), ("HEAD", "/")}
METHODS = [
    "GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND",
]
# fmt: on


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def keyed(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A process that wants keys."""
    runtime = ScriptedRuntime(folder)
    runtime.access = Access(KEYS, ("http://app.example",), ("llm.example",))
    async with runtime, aiohttp.ClientSession(runtime.url) as http, asyncio.timeout(HANG_S):
        while True:
            async with http.get("/ready") as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.02)
        yield runtime


@pytest.fixture
def runtime(keyed: ScriptedRuntime) -> ScriptedRuntime:
    """The process with a fresh script."""
    keyed.reset()
    return keyed


@pytest_asyncio.fixture(loop_scope="session")
async def http(keyed: ScriptedRuntime) -> AsyncIterator[aiohttp.ClientSession]:
    """A plain client without a key."""
    async with aiohttp.ClientSession(keyed.url) as session:
        yield session


def bearer(key: str) -> dict[str, str]:
    """The header of a key."""
    return {"Authorization": f"Bearer {key}"}


async def status_of(runtime: ScriptedRuntime, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and all that comes back for a raw request; nothing of a body needs to be sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    writer.write(head.encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG_S)
    writer.transport.abort()
    return int(answer.split()[1]), answer


async def test_no_key_no_answer(runtime: ScriptedRuntime):
    """Whatever the method and the path, found or not: 401, before a body is read.

    But for the page, which is the same for everybody.
    """
    heads = [
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000"
        for method, path in itertools.product(METHODS, PATHS)
        if (method != "CONNECT" or path.startswith("/")) and (method, path) not in PAGE
    ]
    found = {}
    for start in range(0, len(heads), 40):
        several = heads[start : start + 40]
        answers = await asyncio.gather(*(status_of(runtime, head) for head in several))
        found |= {head: status for head, (status, _) in zip(several, answers, strict=True)}
    # `GET *` is no HTTP: it is refused before it is a request.
    not_http = {head for head, status in found.items() if status == 400}
    assert {head.split()[1] for head in not_http} <= {"*"}
    assert not {head for head, status in found.items() if status != 401} - not_http
    assert len(found) > 250
    assert not runtime.received


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        "Bearer",
        "Bearer ",
        f"Basic {ALICE}",
        ALICE,
        f"Bearer {ALICE}x",
        f"Bearer {ALICE[:-1]}",
        f"Bearer {hash_of(ALICE)}",
        f"Bearer {ALICE} {ALICE}",
        f"Bearer {ALICE}\r\nAuthorization: Bearer {ALICE}",
        "Bearer \udcff\udcfe",
    ],
)
async def test_wrong_keys(runtime: ScriptedRuntime, header: str):
    head = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: {header}"
    status, answer = await status_of(runtime, head)
    assert status == 401
    assert b"\r\nWWW-Authenticate: Bearer\r\n" in answer


async def test_the_runtime_hears_whose_request_it_is_and_how_the_client_calls_it(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
):
    headers = {**bearer(ALICE), "X-Request-Id": "job-7/a"}
    async with http.post("/v1/completions", json=BODY, headers=headers) as response:
        assert response.status == 200 and response.headers["X-Request-Id"] == "job-7/a"
    async with http.post("/v1/completions", json=BODY, headers=bearer(BOB)) as response:
        made = response.headers["X-Request-Id"]
    told = [(one.request_id, one.key) for one in runtime.of(Generate)]
    assert told == [("job-7/a", "alice"), (made, "bob")]


async def test_the_refusal_has_openais_shape(runtime: ScriptedRuntime):
    async with openai.AsyncOpenAI(
        base_url=f"{runtime.url}/v1", api_key="sk-nonsense", max_retries=0
    ) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.models.list()
    assert caught.value.code == "invalid_api_key"
    assert caught.value.type == "invalid_request_error"
    assert "nonsense" not in str(caught.value)


async def test_what_is_open_and_what_a_key_opens(runtime: ScriptedRuntime, http):
    for path in ("/health", "/ready", "/ready?x=1"):
        async with http.get(path) as response:
            assert response.status == 200
    for scheme in ("Bearer", "bearer", "BEARER"):
        async with http.get("/v1/models", headers={"Authorization": f"{scheme} {BOB}"}) as response:
            assert response.status == 200
    async with http.get("/v1/nothing", headers=bearer(ALICE)) as response:
        assert response.status == 404
    async with http.post("/v1/completions", json=BODY, headers=bearer(ALICE)) as response:
        assert response.status == 200


async def test_each_request_of_a_connection_needs_the_key(runtime: ScriptedRuntime):
    head = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    writer.write(f"{head}Authorization: Bearer {ALICE}\r\n\r\n{head}\r\n".encode())
    for status in (b"200", b"401"):
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG_S)
        assert answer.split()[1] == status
        await reader.readuntil(b"}]" if status == b"200" else b"}}")
        if status == b"200":
            await reader.readuntil(b"}")
    writer.close()


async def test_expect_continue_is_not_granted_without_a_key(runtime: ScriptedRuntime):
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    head += "Content-Length: 10"
    assert (await status_of(runtime, head))[0] == 401
    assert (await status_of(runtime, f"{head}\r\nAuthorization: Bearer {ALICE}"))[0] == 100


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 401), ("LOCALHOST:1", 401), ("127.0.0.1:8000", 401), ("[::1]:8000", 401)),
        *(("llm.example", 401), ("llm.example.:80", 401), ("evil.example", 403), ("", 403)),
        *(("localhost.evil.example", 403), ("127.0.0.1.evil.example:80", 403), ("10.0.0.1", 403)),
    ],
)
async def test_foreign_hosts(runtime: ScriptedRuntime, host: str, status: int):
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}"
    assert (await status_of(runtime, head))[0] == status
    if status == 403:  # nothing is open to a page that goes by a foreign name
        assert (await status_of(runtime, f"GET /health HTTP/1.1\r\nHost: {host}"))[0] == 403


async def test_preflight_needs_no_key(runtime: ScriptedRuntime, http):
    ours = {"Origin": "http://app.example", "Access-Control-Request-Method": "POST"}
    async with http.options("/v1/completions", headers=ours) as response:
        assert response.status == 204
        assert "authorization" in response.headers["Access-Control-Allow-Headers"]
    async with http.get("/v1/models", headers=ours) as response:
        assert response.status == 401
        assert response.headers["Access-Control-Allow-Origin"] == "http://app.example"
    async with http.get("/v1/models", headers={**ours, **bearer(ALICE)}) as response:
        assert response.status == 200
    async with http.options("/v1/completions", headers={"Origin": "http://evil.example"}) as r:
        assert r.status == 403


async def test_priority(runtime: ScriptedRuntime, http):
    asked = [(ALICE, None), (ALICE, -7), (ALICE, 3), (BOB, None), (BOB, 0), (BOB, 9)]
    for key, priority in asked:
        body = {**BODY, "priority": priority}
        async with http.post("/v1/completions", json=body, headers=bearer(key)) as response:
            assert response.status == 200
    assert [message.priority for message in runtime.of(Generate)] == [0, 0, 3, 5, 5, 9]


async def test_a_keys_slo_scale_goes_with_its_requests(runtime: ScriptedRuntime, http):
    for key in (ALICE, BOB):
        async with http.post("/v1/completions", json=BODY, headers=bearer(key)) as response:
            assert response.status == 200
    assert [message.slo_scale for message in runtime.of(Generate)] == [0.0, 2.5]


async def test_prompts_and_answers_are_cached_for_each_key(runtime: ScriptedRuntime, http):
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 20, "ignore_eos": True}
    for key in (ALICE, BOB):
        for prompt in ("hi", BODY["prompt"]):
            asking = http.post(
                "/v1/completions", json={**body, "prompt": prompt}, headers=bearer(key)
            )
            async with asking as response:
                assert response.status == 200
    hashes: dict[str, set[bytes]] = {"alice": set(), "bob": set()}
    for number, message in enumerate(runtime.of(Generate)):
        name = ("alice", "alice", "bob", "bob")[number]
        prompt = message.tokens.tolist()
        assert message.salt == salt_digest(name), "the answer's blocks begin with it"
        assert message.hashes == chain_hashes(prompt, BLOCK_SIZE, message.salt)
        hashes[name] |= set(split_hashes(message.hashes))
    assert hashes["alice"]
    assert not hashes["alice"] & hashes["bob"]


async def test_quota(runtime: ScriptedRuntime, http):
    for _ in range(2):
        async with http.post("/v1/completions", json=BODY, headers=bearer(MINUTE)) as response:
            assert response.status == 200
    async with http.post("/v1/completions", json=BODY, headers=bearer(MINUTE)) as response:
        assert response.status == 429
        assert 25 <= int(response.headers["Retry-After"]) <= 30
        error = (await response.json())["error"]
        assert (error["code"], error["type"]) == ("quota_exceeded", "rate_limit_error")
    async with http.get("/v1/models", headers=bearer(MINUTE)) as response:
        assert response.status == 200  # only what costs something counts
    async with http.post("/v1/completions", json=BODY, headers=bearer(ALICE)) as response:
        assert response.status == 200
    assert len(runtime.of(Generate)) == 3


async def test_token_quota(runtime: ScriptedRuntime, http):
    """Prompt and answer count, whether the answer was wanted to its end or not."""
    body = {"model": MODEL, "prompt": [9] * 40, "max_tokens": 200, "stream": True}
    runtime.script = forever
    async with http.post("/v1/completions", json=body, headers=bearer(THRIFTY)) as response:
        for _ in range(30):
            await response.content.readuntil(b"\n\n")
    await runtime.until(AbortRequest)
    await quiet(runtime)
    async with http.post("/v1/completions", json=body, headers=bearer(THRIFTY)) as response:
        if response.status == 200:  # fewer than 60 tokens were made: these are charged, too
            await response.content.readuntil(b"\n\n")
    async with http.post("/v1/completions", json=body, headers=bearer(THRIFTY)) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "quota_exceeded"
    await quiet(runtime)


@pytest.mark.parametrize("stream", [False, True])
async def test_max_running(runtime: ScriptedRuntime, http, stream: bool):
    runtime.script = forever
    body = {**BODY, "max_tokens": 200, "n": 2, "stream": stream}
    asking = asyncio.ensure_future(http.post("/v1/completions", json=body, headers=bearer(BUSY)))
    await runtime.until(Generate)
    async with http.post("/v1/completions", json=BODY, headers=bearer(BUSY)) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "too_many_running"
    if stream:
        (await asking).close()
    else:
        asking.cancel()
    await runtime.until(AbortRequest)
    await quiet(runtime)
    runtime.reset()
    async with http.post("/v1/completions", json=BODY, headers=bearer(BUSY)) as response:
        assert response.status == 200
    async with http.post("/v1/completions", json={**BODY, "n": 3}, headers=bearer(BUSY)) as again:
        assert again.status == 400


async def test_new_keys_hold_at_once(runtime: ScriptedRuntime, http):
    fresh = new_key()
    runtime.send(Access((KeyConfig("alice", hash_of(fresh)),), (), ()))
    await asyncio.sleep(0.05)
    for key, status in ((ALICE, 401), (BOB, 401), (fresh, 200)):
        async with http.get("/v1/models", headers=bearer(key)) as response:
            assert response.status == status
    runtime.send(Access(KEYS, ("http://app.example",), ("llm.example",)))
    await asyncio.sleep(0.05)
    async with http.get("/v1/models", headers=bearer(fresh)) as response:
        assert response.status == 401


async def test_nobody_is_let_in_before_keys_are_known(folder: Path):
    runtime = ScriptedRuntime(folder)
    runtime.access = None
    async with runtime, aiohttp.ClientSession(runtime.url) as http:
        async with http.get("/health") as response:
            assert response.status == 200
        async with http.get("/v1/models") as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "not_ready"
        runtime.send(Access((), (), ()))
        await asyncio.sleep(0.05)
        async with http.get("/v1/models") as response:
            assert response.status == 200


async def test_accounts_stay_with_their_names():
    keyring = Keyring()
    keyring.update([KeyConfig("a", hash_of("1")), KeyConfig("b", hash_of("2"))])
    account = keyring.admit(["Bearer 1"])
    keyring.update([KeyConfig("a", hash_of("3"), priority=4, slo_scale=3.0)])
    assert keyring.admit(["Bearer 3"]) is account is not None
    assert (account.key.priority, account.key.slo_scale) == (4, 3.0)
    keyring.update([])
    assert keyring.admit([]) is None
    keyring.update([KeyConfig("nothing", hash_of(""))])
    for headers in ([], ["Bearer "], ["Bearer"], ["Basic x"]):
        with pytest.raises(ApiError):
            keyring.admit(headers)


async def test_no_hash_is_shown(caplog: pytest.LogCaptureFixture):
    key = KEYS[0]
    with caplog.at_level(logging.INFO):
        logging.getLogger(__name__).info("%s %r", key, msgspec.structs.replace(key, priority=3))
    assert "alice" in caplog.text and key.hash not in caplog.text
