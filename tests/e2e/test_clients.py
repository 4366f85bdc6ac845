"""The official client, a plain one and a browser against the daemon with the embedded model."""

import json
import re
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.api.browser import MISSING, browser
from tests.e2e.live import LiveDaemon

QUESTION = [{"role": "user", "content": "Name three rivers of Europe."}]


@pytest.fixture
def daemon(embedded: LiveDaemon) -> LiveDaemon:
    return embedded


def client(daemon: LiveDaemon) -> OpenAI:
    return OpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0)


def test_a_streamed_chat_is_the_whole_chat_in_pieces(daemon: LiveDaemon) -> None:
    asked = {"model": daemon.model()["id"], "messages": QUESTION, "temperature": 0}
    whole = client(daemon).chat.completions.create(**asked, max_tokens=12)
    stream = client(daemon).chat.completions.create(
        **asked, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12


async def test_several_streams_differ_by_seed_and_repeat(daemon: LiveDaemon) -> None:
    remote = AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0)

    async def texts(seed: int) -> list[str | None]:
        asked: dict[str, Any] = {"messages": QUESTION, "temperature": 1.0, "top_p": 1.0}
        answer = await remote.chat.completions.create(
            model=daemon.model()["id"], **asked, max_tokens=8, n=3, seed=seed
        )
        return [choice.message.content for choice in answer.choices]

    first, again, other = await texts(5), await texts(5), await texts(6)
    await remote.close()
    assert first == again
    assert len(set(first)) == 3
    assert first != other


def test_a_stop_string_ends_the_text_before_it(daemon: LiveDaemon) -> None:
    asked = {"model": daemon.model()["id"], "prompt": "One, two, three, four,", "temperature": 0}
    text = client(daemon).completions.create(**asked, max_tokens=16).choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    choice = client(daemon).completions.create(**asked, max_tokens=16, stop=stop).choices[0]
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


async def test_a_second_turn_finds_the_first_answer_in_the_cache(daemon: LiveDaemon) -> None:
    body = {"model": daemon.model()["id"], "max_tokens": 24, "temperature": 0, "stream": False}
    async with aiohttp.ClientSession(daemon.url) as session:

        async def turn(messages: list[dict[str, str]]) -> dict[str, object]:
            asked = {**body, "messages": messages}
            async with session.post("/v1/chat/completions", json=asked) as got:
                assert got.status == 200, await got.text()
                return json.loads(await got.text())

        talk = [{"role": "user", "content": "Tell me something about the sea, please."}]
        first = await turn(talk)
        answer = first["choices"][0]["message"]
        talk += [answer, {"role": "user", "content": "And now about the mountains."}]
        second = await turn([{k: m[k] for k in ("role", "content")} for m in talk])
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > first["usage"]["prompt_tokens"]


def test_a_call_that_must_be_made_is_made_and_its_result_goes_back(daemon: LiveDaemon) -> None:
    unit = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": unit},
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    weather = {"name": "get_weather", "description": "The weather now.", "parameters": schema}
    question = {"role": "user", "content": "What is the weather in Paris?"}
    asked = {
        "model": daemon.model()["id"],
        "tools": [{"type": "function", "function": weather}],
        "temperature": 0,
    }
    remote = client(daemon).chat.completions
    forced = {**asked, "tool_choice": "required", "parallel_tool_calls": False}
    chunks = list(remote.create(**forced, messages=[question], max_tokens=40, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    first, *pieces = [piece for c in chunks for piece in c.choices[0].delta.tool_calls or ()]
    assert first.function.name == "get_weather" and {piece.index for piece in pieces} == {0}
    arguments = "".join(piece.function.arguments for piece in pieces)
    assert set(json.loads(arguments)) == {"city", "unit"}
    assert json.loads(arguments)["unit"] in unit["enum"]
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": first.id, "type": "function", "function": function}
    history = [
        question,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": first.id, "content": "It rains."},
    ]
    choice = remote.create(**asked, messages=history, tool_choice="none", max_tokens=6).choices[0]
    assert choice.message.content and not choice.message.tool_calls


PERSON = {  # as instructor 1.17 makes it of a class with four fields, the last with a default
    "properties": {
        "name": {"maxLength": 40, "title": "Name", "type": "string"},
        "age": {"maximum": 150, "minimum": 0, "title": "Age", "type": "integer"},
        "kind": {"enum": ["adult", "child"], "title": "Kind", "type": "string"},
        "email": {
            "anyOf": [{"maxLength": 40, "type": "string"}, {"type": "null"}],
            "default": None,
            "title": "Email",
        },
    },
    "required": ["age", "kind", "name"],
    "type": "object",
}


def test_instructor_s_objects_are_whole_and_hold_nothing_else(daemon: LiveDaemon) -> None:
    question = "Anna Smith is 31 years old and lives in Oslo. Who is she?"
    asked = {
        "model": daemon.model()["id"],
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 120,
    }
    named = {"name": "Person", "description": "Somebody."}
    form = {"type": "json_schema", "json_schema": {"name": "Person", "schema": PERSON}}
    call = {
        "tools": [{"type": "function", "function": {**named, "parameters": PERSON}}],
        "tool_choice": {"type": "function", "function": {"name": "Person"}},
    }
    create = client(daemon).chat.completions.create
    (made,) = create(**asked, **call).choices[0].message.tool_calls or ()
    answer = create(**asked, response_format=form).choices[0].message.content
    for text in (made.function.arguments, answer):
        person = json.loads(text)
        assert {"name", "age", "kind"} <= person.keys() <= PERSON["properties"].keys()
        assert person["kind"] in ("adult", "child") and 0 <= person["age"] <= 150


def test_a_ready_daemon_says_how_to_talk_to_it(daemon: LiveDaemon) -> None:
    assert f"llmd chat --url {daemon.url}\n" in daemon.text()
    assert f"in a browser: {daemon.url}/\n" in daemon.text()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
async def test_a_person_with_a_browser(daemon: LiveDaemon) -> None:
    """An answer grows before their eyes, is stopped, and the next one comes whole."""
    body = "[...document.querySelectorAll('.turn.assistant .body')].at(-1).innerText"
    async with browser() as chromium, chromium.tab(daemon.url) as tab:
        await tab.until("document.querySelector('#state').innerText.includes('cpu')")
        endless = {"max_tokens": 4000, "stream": True, "extra_body": {"ignore_eos": True}}
        remote = AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0)
        other = await remote.completions.create(
            model=daemon.model()["id"], prompt="Once", **endless
        )
        await tab.until("document.querySelector('#running').innerText === '1'")
        await other.close()
        for num_answers in range(1, 4):  # one may end by itself before it is stopped
            await tab.type("Tell me a long story about a river.")
            await tab.press("Enter")
            await tab.until(f"{body}.length > 10")
            seen = await tab.evaluate(body)
            ended = f"document.querySelectorAll('.end').length === {num_answers}"
            await tab.until(f"{body}.length > {len(seen) + 10} || {ended}")
            assert (await tab.evaluate(body)).startswith(seen)
            await tab.press("Escape")
            await tab.until(ended)
            said = await tab.evaluate("[...document.querySelectorAll('.end')].at(-1).innerText")
            if said.startswith("about "):
                break
        else:
            pytest.fail("three answers ended before they could be stopped")
        daemon.idle_snapshot()
        await tab.until("document.querySelector('#running').innerText === '0'")
        await tab.evaluate("document.querySelector('#max-tokens').value = '12'")
        await tab.type("And then?")
        await tab.press("Enter")
        await tab.until(f"document.querySelectorAll('.end').length === {num_answers + 1}")
        # It may end before its limit. The server counts its tokens: it is not "about" so many.
        said = await tab.evaluate("[...document.querySelectorAll('.end')].at(-1).innerText")
        counted = re.match(r"(\d+) tokens?, first after", said)
        assert counted and 0 < int(counted[1]) <= 12
        assert tab.complaints == []
        assert {one for one in tab.asked if not one.startswith(f"{daemon.url}/")} == set()
