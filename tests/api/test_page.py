"""The page at `/`: who may fetch it, what it may do, and whom it may ask."""

import asyncio
import base64
import hashlib
import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from daemon.config.keys import hash_of, new_key
from daemon.config.schema import KeyConfig
from daemon.protocol.api import Access
from tests.api.scripted import ScriptedRuntime
from tests.api.test_keys import bearer, status_of
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = new_key()
OPEN = Access((), (), ())
NUMBERS = itertools.count()
KEYED = Access((KeyConfig("alice", hash_of(KEY)),), (), ())


async def let_in(runtime: ScriptedRuntime, access: Access) -> None:
    """Have the process know these keys and names; it hears what is sent in its order."""
    runtime.send(access)
    said = f"ready, {next(NUMBERS)}"
    runtime.change(status=said)
    async with asyncio.timeout(HANG_S), aiohttp.ClientSession(runtime.url) as http:
        while True:
            async with http.get("/health") as got:
                if (await got.json())["detail"] == said:
                    return


async def page(http: aiohttp.ClientSession) -> tuple[aiohttp.ClientResponse, str]:
    async with http.get("/") as got:
        assert got.status == 200
        return got, await got.text()


def hashes(tag: str, text: str) -> set[str]:
    """Of what stands in these elements, as a Content-Security-Policy names them."""
    found = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = [hashlib.sha256(one.encode()).digest() for one in found]
    return {f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests}


async def test_the_page_runs_its_own_scripts_and_no_others(runtime: ScriptedRuntime, http):
    got, text = await page(http)
    rules = dict(rule.split(" ", 1) for rule in got.headers["Content-Security-Policy"].split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert set(rules["script-src"].split()) == hashes("script", text)
    assert set(rules["style-src"].split()) == hashes("style", text)
    assert len(hashes("script", text)) == 6 and len(hashes("style", text)) == 1
    assert not re.findall(r"\b(?:src|on\w+|style)=", text), "the policy would stop these"
    assert set(re.findall(r"https?://[^'\"\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search("innerHTML|outerHTML|insertAdjacent|DOMParser|document.write|eval", text)


async def test_headers(runtime: ScriptedRuntime, http):
    got, _text = await page(http)
    assert got.headers["Content-Type"] == "text/html; charset=utf-8"
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert got.headers["Referrer-Policy"] == "no-referrer"
    async with http.head("/") as head:
        assert (head.status, await head.read()) == (200, b"")
        same = {"Content-Length", "Content-Security-Policy", "Content-Type"}
        assert {name: head.headers[name] for name in same} == {
            name: got.headers[name] for name in same
        }
    async with http.post("/") as posted:
        assert posted.status == 405


async def test_the_page_needs_no_key_and_what_it_reads_does(
    runtime: ScriptedRuntime, http, keyed: None
):
    await page(http)
    for path in ("/status", "/?x=1/../status", "/page.js", "/chat.js"):
        async with http.get(path) as got:
            assert got.status == (200 if "?" in path else 401)
    async with http.get("/status", headers=bearer(KEY)) as got:
        assert got.status == 200


async def test_a_foreign_host_gets_no_page(runtime: ScriptedRuntime):
    head = "GET / HTTP/1.1\r\nHost: evil.example"
    assert (await status_of(runtime, head))[0] == 403


@pytest_asyncio.fixture(loop_scope="session")
async def keyed(runtime: ScriptedRuntime) -> AsyncIterator[None]:
    """The process wants a key meanwhile."""
    await let_in(runtime, KEYED)
    yield
    await let_in(runtime, OPEN)


OWN = [
    ("localhost:{port}", "http://localhost:{port}", 200),
    ("127.0.0.1:{port}", "http://127.0.0.1:{port}", 200),
    ("127.0.0.1", "https://127.0.0.1", 200),
    ("localhost:{port}", "http://127.0.0.1:{port}", 403),
    ("localhost:{port}", "http://localhost:3000", 403),
    ("localhost:{port}", "null", 403),
    ("localhost:{port}", "file://localhost:{port}", 403),
    ("localhost:{port}", "http://evil.example", 403),
]


@pytest.mark.parametrize(("host", "origin", "status"), OWN)
async def test_only_the_page_itself_may_ask(
    runtime: ScriptedRuntime, host: str, origin: str, status: int
):
    """A browser names the origin of every POST: this server's own, or that of a foreign page."""
    head = f"GET /status HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}"
    got, answer = await status_of(runtime, head.replace("{port}", str(runtime.port)))
    assert got == status
    assert b"Access-Control-Allow-Origin" not in answer


async def test_a_name_that_anybody_may_give_needs_a_key(runtime: ScriptedRuntime):
    """A foreign page can have its own name point here, and is then of the same origin."""
    head = "GET /status HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}"
    try:
        await let_in(runtime, Access((), (), ("*",)))
        assert (await status_of(runtime, head.format("evil.example")))[0] == 403
        assert (await status_of(runtime, head.format("192.0.2.7:8000")))[0] == 200
        await let_in(runtime, Access(KEYED.keys, (), ("*",)))
        with_key = f"{head}\r\nAuthorization: Bearer {KEY}"
        assert (await status_of(runtime, with_key.format("workstation.lan")))[0] == 200
        assert (await status_of(runtime, head.format("evil.example")))[0] == 401
        await let_in(runtime, Access((), (), ("workstation.lan",)))
        assert (await status_of(runtime, head.format("workstation.lan")))[0] == 200
    finally:
        await let_in(runtime, OPEN)


async def test_without_the_page_all_is_as_if_there_were_none(folder: Path):
    async with (
        ScriptedRuntime(folder, page=False) as runtime,
        aiohttp.ClientSession(runtime.url) as http,
    ):
        for method in ("GET", "HEAD"):
            async with http.request(method, "/") as got:
                assert got.status == 404
        own = "GET /status HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost"
        assert (await status_of(runtime, own))[0] == 403
        await let_in(runtime, KEYED)
        async with http.get("/") as got:
            assert got.status == 401
