"""What does not fit the context is told with the field's name and the right numbers."""

from typing import Any

import aiohttp
import pytest

from daemon.protocol.api import Generate
from tests.api.scripted import MAX_LEN, MODEL, ScriptedRuntime
from tests.api.test_errors import post

pytestmark = pytest.mark.asyncio(loop_scope="session")

FULL, NEARLY = [5] * MAX_LEN, [5] * (MAX_LEN - 10)
NO_ROOM = "and needs room for one more"
PROMPTS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": FULL, "max_tokens": 0, "echo": True}, "prompt", f"has {MAX_LEN}, {NO_ROOM}"),
    ({"prompt": FULL, "max_tokens": 5}, "prompt", f"has {MAX_LEN}, {NO_ROOM}"),
    ({"prompt": "x" * MAX_LEN, "max_tokens": 0, "echo": True}, "prompt", NO_ROOM),
    (
        {"prompt": NEARLY, "max_tokens": 11, "n": 2},
        "prompt",
        f"has {MAX_LEN - 10} and `max_tokens` asks for 11 more: {MAX_LEN + 1}",
    ),
    ({"prompt": [NEARLY, FULL], "max_tokens": 1}, "prompt", f"has {MAX_LEN}, {NO_ROOM}"),
    ({"prompt": "x", "max_tokens": MAX_LEN}, "max_tokens", f"asks for {MAX_LEN} beside"),
    ({"prompt": "x" * 190_000}, "prompt", "has 190000 bytes of text"),
]
CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"max_completion_tokens": MAX_LEN}, "max_completion_tokens", f"asks for {MAX_LEN} beside"),
    ({"max_tokens": MAX_LEN + 7}, "max_tokens", f"asks for {MAX_LEN + 7} beside"),
    ({"max_tokens": MAX_LEN - 1}, "messages", f"`max_tokens` asks for {MAX_LEN - 1} more"),
    (
        {"max_completion_tokens": MAX_LEN - 1, "n": 3},
        "messages",
        f"`max_completion_tokens` asks for {MAX_LEN - 1} more",
    ),
    ({"messages": [{"role": "user", "content": "one two " * 300}]}, "messages", NO_ROOM),
]


async def check(
    http: aiohttp.ClientSession, path: str, body: dict[str, Any], param: str, said: str
) -> None:
    status, error = await post(http, path, {"model": MODEL, **body})
    assert (status, error["code"]) == (400, "context_length_exceeded"), error
    assert error["param"] == param
    assert f"`{param}` " in error["message"]
    assert said in error["message"]
    assert f"{MAX_LEN} tokens" in error["message"]


@pytest.mark.parametrize(("body", "param", "said"), PROMPTS)
async def test_prompts(
    runtime: ScriptedRuntime,
    http: aiohttp.ClientSession,
    body: dict[str, Any],
    param: str,
    said: str,
) -> None:
    await check(http, "/v1/completions", body, param, said)
    assert not runtime.received


@pytest.mark.parametrize(("body", "param", "said"), CHATS)
async def test_chats(
    runtime: ScriptedRuntime,
    http: aiohttp.ClientSession,
    body: dict[str, Any],
    param: str,
    said: str,
) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], **body}
    await check(http, "/v1/chat/completions", chat, param, said)
    assert not runtime.received


async def test_tokens(http: aiohttp.ClientSession) -> None:
    await check(http, "/detokenize", {"tokens": [5] * 300}, "tokens", "has 300")


@pytest.mark.parametrize("room", [1, 10, 15, 16, 20])
async def test_a_default_limit_is_cut_to_the_room(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, room: int
) -> None:
    body = {"model": MODEL, "prompt": [5] * (MAX_LEN - room), "logprobs": 0, "echo": room == 1}
    async with http.post("/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        assert (await answer.json())["usage"]["completion_tokens"] == min(room, 16)
    assert [asked.max_tokens for asked in runtime.of(Generate)] == [min(room, 16)]
