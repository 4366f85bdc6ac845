"""What a request leaves out: the model's recommended sampling, which its own fields win over."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from daemon.models.generation import DefaultSampling
from daemon.protocol.api import Generate
from tests.api.scripted import MAX_LEN, MODEL, ScriptedRuntime, saying
from tests.api.waiting import until_ready

pytestmark = pytest.mark.asyncio(loop_scope="session")

DEFAULTS = DefaultSampling(
    temperature=0.2, top_k=7, top_p=0.9, min_p=0.01, repetition_penalty=1.1, max_tokens=5
)
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def recommended(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A process that serves a model with recommended sampling."""
    runtime = ScriptedRuntime(folder)
    runtime.serving = msgspec.structs.replace(runtime.serving, defaults=DEFAULTS)
    async with runtime:
        await until_ready(runtime.url)
        yield runtime


async def asked(runtime: ScriptedRuntime, path: str, body: dict[str, object]) -> Generate:
    runtime.reset()
    async with (
        aiohttp.ClientSession(runtime.url) as http,
        http.post(f"/v1/{path}", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
    return runtime.of(Generate)[0]


def drawn(message: Generate) -> dict[str, float]:
    return {name: getattr(message.sampling, name) for name in NEUTRAL}


async def test_a_field_left_out_or_null_is_the_models(recommended: ScriptedRuntime) -> None:
    theirs = {name: getattr(DEFAULTS, name) for name in NEUTRAL}
    nulls: dict[str, object] = dict.fromkeys([*NEUTRAL, "max_tokens"])
    for body in (CHAT, CHAT | nulls):
        message = await asked(recommended, "chat/completions", body)
        assert drawn(message) == theirs and message.max_tokens == 5
    message = await asked(recommended, "completions", {"model": MODEL, "prompt": "hello"})
    assert drawn(message) == theirs and message.max_tokens == 16


async def test_a_requests_own_fields_win(recommended: ScriptedRuntime) -> None:
    message = await asked(recommended, "chat/completions", CHAT | NEUTRAL | {"max_tokens": 9})
    assert drawn(message) == NEUTRAL and message.max_tokens == 9
    message = await asked(recommended, "chat/completions", CHAT | {"temperature": 0})
    assert drawn(message)["temperature"] == 0 and drawn(message)["top_p"] == 0.9


async def test_a_default_limit_is_cut_to_the_room_that_is_left(folder: Path) -> None:
    runtime = ScriptedRuntime(folder)
    wide = DefaultSampling(max_tokens=MAX_LEN)
    runtime.serving = msgspec.structs.replace(runtime.serving, defaults=wide)
    async with runtime:
        await until_ready(runtime.url)
        message = await asked(runtime, "chat/completions", CHAT)
    assert message.max_tokens == MAX_LEN - len(message.tokens)


async def test_the_models_card_shows_them(
    recommended: ScriptedRuntime, runtime: ScriptedRuntime
) -> None:
    for process, defaults in ((recommended, DEFAULTS), (runtime, DefaultSampling())):
        async with (
            aiohttp.ClientSession(process.url) as http,
            http.get("/v1/models") as answer,
        ):
            card = (await answer.json())["data"][0]
        assert card["default_sampling"] == msgspec.json.decode(msgspec.json.encode(defaults))


async def test_a_models_own_stops_and_tokens_that_it_never_draws(folder: Path) -> None:
    runtime = ScriptedRuntime(folder)
    own = DefaultSampling(stop=("</a>",), suppressed=(5, 7, 10**6), min_tokens=3)
    runtime.serving = msgspec.structs.replace(runtime.serving, defaults=own)
    async with runtime:
        await until_ready(runtime.url)
        message = await asked(runtime, "chat/completions", CHAT | {"logit_bias": {"7": 2}})
        assert dict(message.sampling.logit_bias) == {5: -1e4, 7: 2.0}
        assert message.sampling.min_tokens == 3
        short: dict[str, object] = {"model": MODEL, "prompt": "x", "max_tokens": 2}
        message = await asked(runtime, "completions", short)
        assert message.sampling.min_tokens == 2


async def test_an_answer_ends_at_the_models_own_stop(folder: Path, words: Tokenizer) -> None:
    runtime = ScriptedRuntime(folder)
    own = DefaultSampling(stop=("ee fo",))
    runtime.serving = msgspec.structs.replace(runtime.serving, defaults=own)
    runtime.script = saying(words, "one two three four five six")
    cases: list[tuple[dict[str, object], str]] = [
        ({}, "one two thr"),
        ({"stop": "two"}, "one "),
        ({"ignore_eos": True}, "one two three four five six"),
    ]
    async with runtime, aiohttp.ClientSession(runtime.url) as http:
        await until_ready(runtime.url)
        for fields, said in cases:
            async with http.post("/v1/chat/completions", json=CHAT | fields) as answer:
                (choice,) = (await answer.json())["choices"]
            assert choice["message"]["content"] == said
