"""Fields that real clients send: some reach the template, some are taken and change nothing."""

import time
from typing import Any

import aiohttp
import openai
import pytest
from tokenizers import Tokenizer

from daemon import __version__
from daemon.api.request.schema import Message
from daemon.api.sandbox.chat_template import ChatTemplate
from daemon.api.sandbox.conversation import template_message
from daemon.protocol.api import Generate
from tests.api.scripted import MODEL, ScriptedRuntime, saying
from tests.api.test_chat import HELLO, PROMPT

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPENAI_ONLY: dict[str, Any] = {
    "store": False,
    "metadata": {"job": "7"},
    "service_tier": "auto",
    "safety_identifier": "u1",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "user": "u1",
}
CHAT_ONLY: dict[str, Any] = {
    "modalities": ["text"],
    "reasoning_effort": "low",
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
    "chat_template_kwargs": {"enable_thinking": False},
}
# Bodies as guidellm 0.8.1 and aiperf send them.
LOAD_GENERATORS = (
    {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_completion_tokens": 8,
        "stop": None,
        "ignore_eos": True,
    },
    {
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 8,
        "min_tokens": 8,
        "ignore_eos": True,
    },
)


async def refusal(client: openai.AsyncOpenAI, **fields: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=fields)
    return caught.value


async def test_what_is_ignored_changes_no_prompt(
    runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer
):
    runtime.script = saying(words, "hello")
    await client.chat.completions.create(
        model=MODEL, messages=HELLO, extra_body=OPENAI_ONLY | CHAT_ONLY
    )
    await client.completions.create(model=MODEL, prompt=PROMPT, extra_body=OPENAI_ONLY)
    chat, plain = runtime.of(Generate)
    expected = words.encode(PROMPT, add_special_tokens=False).ids
    assert chat.tokens.tolist() == expected
    assert plain.tokens.tolist() == words.encode(PROMPT).ids


async def test_a_deadline_counts_from_the_requests_arrival(
    runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer
):
    runtime.script = saying(words, "hello")
    before_s = time.monotonic()
    for body in ({"deadline_s": 30}, {"deadline_s": None}, {}):
        await client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=body)
    due_s, *none = [message.deadline_s for message in runtime.of(Generate)]
    assert before_s + 30 <= due_s <= time.monotonic() + 30
    assert none == [0.0, 0.0]


@pytest.mark.parametrize("body", LOAD_GENERATORS)
async def test_load_generators_are_served(
    runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer, body: dict[str, Any]
):
    runtime.script = saying(words, "hello")
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, extra_body=body
    )
    last = [chunk async for chunk in stream][-1]
    assert last.usage is not None and last.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_token", 5, "did you mean `max_tokens`?"),
        ("temprature", 0.5, "did you mean `temperature`?"),
        ("reasoning_efort", "low", "did you mean `reasoning_effort`?"),
        ("zzz", 1, "unknown field"),
        ("modalities", ["audio"], "must be 'text', and is"),
        ("metadata", {"a": 1}, "must be a string"),
        ("web_search_options", {}, "is not supported"),
        ("chat_template_kwargs", {"messages": []}, "cannot set `messages`"),
        ("prompt_cache_key", "x" * 2000, "at most 1024 letters"),
    ],
)
async def test_what_cannot_be_meant_is_named(
    client: openai.AsyncOpenAI, field: str, value: Any, said: str
):
    error = await refusal(client, **{field: value})
    assert error.param.startswith(field) and said in error.message


async def test_a_template_sees_its_values_and_thoughts():
    template = ChatTemplate(
        "{% for m in messages %}{{ m.reasoning_content or '' }}>{{ m.content }};{% endfor %}"
        "{{ enable_thinking }} {{ reasoning_effort }}{% if add_generation_prompt %}!{% endif %}",
        {"eos_token": "</s>"},
    )
    messages = [
        template_message(Message(role="assistant", content="so", reasoning_content="hm")),
        template_message(Message(role="assistant", content="and", reasoning="oh")),
        template_message(Message(role="user", content="why")),
    ]
    values = {"enable_thinking": False, "reasoning_effort": "high", "self": 1}
    assert template.render(messages, True, None, values) == "hm>so;oh>and;>why;False high!"


async def test_addresses_of_other_servers(client: openai.AsyncOpenAI):
    root = str(client.base_url).removesuffix("/v1/")
    async with aiohttp.ClientSession(root) as session:
        async with session.get("/v1/models/") as answer:
            assert (await answer.json())["data"][0]["id"] == MODEL
        async with session.get("/version") as answer:
            assert await answer.json() == {"version": __version__}
        async with session.get("/ping") as ping, session.get("/health") as health:
            assert (ping.status, set(await ping.json())) == (200, set(await health.json()))
