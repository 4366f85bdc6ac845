"""Names and bodies that are meant to do harm: a clear refusal, and nothing opened or asked for."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest

from daemon.api.model import CurrentModel
from daemon.api.replies.errors import ApiError
from daemon.protocol.api import Serving
from tests.api.scripted import ScriptedRuntime
from tests.api.test_errors import post

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAMES = [
    "../../../etc/passwd",
    "tiny/../../../etc/passwd",
    "/etc/passwd",
    "tiny-folder/tokenizer.json",
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data/",
    "http://127.0.0.1:1/tiny",
    "https://user@example.com/tiny",
    "\\\\host\\share\\tiny",
    "tiny\x00",
    "tiny\n",
    "${jndi:ldap://127.0.0.1:1/a}",
    "%2e%2e%2fetc%2fpasswd",
    "TINY",
    " ",
    ".",
    "x" * 100_000,
]
OPENS = {"open", "os.open", "os.listdir", "os.scandir", "socket.connect", "socket.getaddrinfo"}

_seen: list[str] | None = None


def _note(event: str, _arguments: tuple[object, ...]) -> None:
    if _seen is not None and event in OPENS:
        _seen.append(event)


@contextmanager
def opened() -> Iterator[list[str]]:
    """What Python opens, lists or connects to within the block."""
    global _seen
    if not hasattr(opened, "hooked"):  # a hook stays for good
        sys.addaudithook(_note)
        opened.hooked = True  # type: ignore[attr-defined]
    _seen = found = []
    try:
        yield found
    finally:
        _seen = None


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_a_model_s_name_is_looked_up_and_nothing_else(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, name: str
):
    for path, fields in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [5]}),
    ):
        status, error = await post(http, path, {"model": name, **fields})
        assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
        assert len(error["message"]) < 1000
    if 0 < len(name) < 5000 and name != ".":
        async with http.get(f"/v1/models/{quote(name, safe='')}") as got:
            assert got.status in {400, 404}
    assert not runtime.received


async def test_no_name_opens_a_file_or_a_connection(folder: Path):
    with ThreadPoolExecutor(1) as pool:
        model = CurrentModel("tiny", pool)
        model.update(Serving("tiny", str(folder), True, False, 256, 256, 4, 400, "ready"))
        assert model._loading is not None
        await model._loading
        with opened() as found:
            assert model.admit("tiny") and model.admit(folder.name) and model.admit(None)
            for name in NAMES:
                with pytest.raises(ApiError, match="does not exist"):
                    model.admit(name)
        assert not found
        with opened() as found:
            Path(folder, "tokenizer.json").read_bytes()
        assert found  # so it would have been seen


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 199_000,
        b'{"a":' * 39_000,
        b'{"prompt":' + b"[" * 199_000,
        b'{"messages":[{"role":"user","content":' + b"[" * 100_000 + b"]" * 99_000,
        b'{"prompt":"x","model":' + b"9" * 5000 + b"}",
        b'{"tokens":[' + b"9" * 5000 + b"]}",
        b'{"tokens":[1e400]}',
        b'{"tokens":[NaN]}',
        b'{"prompt":"\\udfff\\ud800"}',
        b'{"prompt":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"prompt":"x"}',
        b'{"prompt":"x"}{"prompt":"y"}',
        b"\x00",
    ],
    ids=range(13),
)
async def test_bodies_that_no_route_takes(runtime, http, body: bytes):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        status, _error = await post(http, path, body)
        assert status == 400
    assert not runtime.received
