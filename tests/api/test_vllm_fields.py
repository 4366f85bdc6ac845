"""Fields that vLLM has beside OpenAI's: they mean here what they mean there."""

from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from daemon.api.replies.errors import ApiError
from daemon.api.sandbox.chat_template import ChatTemplate
from daemon.protocol.api import Generate
from tests.api.folder import EOS
from tests.api.scripted import MODEL, ScriptedRuntime, saying
from tests.api.test_errors import post

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
HELLO = [{"role": "user", "content": "hello"}]
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": SCHEMA}, '"required":["a"]'),
    ({"guided_json": '{"type": "object", "properties": {"a": {}}}'}, '"properties":{"a":{}}'),
    ({"guided_choice": ["yes", 'n"o', "🦉"]}, 'start: "yes" | "n\\"o" | "\\ud83e\\udd89"'),
    ({"guided_choice": ["a\x7fb"]}, '"a\\u007fb"'),
    ({"guided_regex": "[0-9]{4}"}, "[0-9]{4}"),
    ({"guided_grammar": 'start: "yes" | "no"'}, 'start: "yes" | "no"'),
    ({"guided_grammar": 'root ::= "yes" | "no"'}, 'start: "yes" | "no"'),
    ({"structured_outputs": {"json": SCHEMA}}, '"required":["a"]'),
    ({"structured_outputs": {"choice": ["one"]}}, 'start: "one"'),
    ({"structured_outputs": {"regex": "a|b", "json_object": False}}, "a|b"),
    ({"structured_outputs": {"grammar": 'start: "x"'}}, 'start: "x"'),
    ({"structured_outputs": {"json_object": True}}, '"type":"object"'),
]


@pytest.mark.parametrize(("fields", "within"), FORMS)
async def test_what_an_answer_follows(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, fields: dict[str, Any], within: str
) -> None:
    chat = {"messages": HELLO, "max_tokens": 2, **fields}
    completion = {"prompt": "hello", "max_tokens": 2, **fields}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", completion)):
        async with http.post(path, json=body) as answer:
            assert answer.status == 200, await answer.text()
    for asked in runtime.of(Generate):
        grammar = asked.sampling.grammar
        assert plain(within) in plain(grammar)


def plain(text: str) -> str:
    """A text without white space and escapes: a grammar stands in JSON, or does not."""
    return "".join(text.replace("\\n", "").replace("\\", "").split())


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"guided_json": "{"}, "guided_json", "must be a JSON schema"),
        ({"guided_json": "[]"}, "guided_json", "must be a JSON schema"),
        ({"guided_json": {"minimum": 10**20}}, "guided_json", "`guided_json.minimum` is 1000"),
        ({"guided_choice": []}, "guided_choice", "a list of 1 to 1024 entries, and is an empty"),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
        ({"guided_grammar": 'root ::= "a'}, "guided_grammar", "no EBNF"),
        ({"guided_grammar": "root ::= " + '"a" ' * 9000}, "guided_grammar", "bytes of EBNF"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex", "cannot be combined"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "`response_format` and `guided_regex` cannot be combined",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "must have one of `json`"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs.regex",
            "cannot be combined",
        ),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "unknown field"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "`guided_regex`"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "cannot both be true",
        ),
    ],
)
async def test_what_cannot_be_meant_is_named(
    runtime: ScriptedRuntime,
    http: aiohttp.ClientSession,
    fields: dict[str, Any],
    param: str,
    said: str,
) -> None:
    status, error = await post(http, "/v1/chat/completions", {"messages": HELLO, **fields})
    assert (status, error["param"]) == (400, param), error
    assert said in error["message"]
    assert not runtime.of(Generate)


async def test_special_tokens_are_shown_where_that_is_asked_for(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, words: Tokenizer
) -> None:
    runtime.script = saying(words, "one<|im_end|>two", EOS)
    body = {"messages": HELLO, "max_tokens": 20}
    for fields, said in (
        ({}, "onetwo"),
        ({"skip_special_tokens": True}, "onetwo"),
        ({"skip_special_tokens": False}, "one<|im_end|>two"),
    ):
        async with http.post("/v1/chat/completions", json={**body, **fields}) as answer:
            choice = (await answer.json())["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (said, "stop")


@pytest.mark.parametrize("content", ["The owl is ", "", "two\nlines"])
async def test_the_last_message_goes_on(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, words: Tokenizer, content: str
) -> None:
    messages = [*HELLO, {"role": "assistant", "content": content}]
    body = {"messages": messages, "continue_final_message": True}
    async with http.post("/v1/chat/completions", json={**body, "max_tokens": 2}) as answer:
        assert answer.status == 200, await answer.text()
    (asked,) = runtime.of(Generate)
    whole = f"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n{content}"
    assert words.decode(asked.tokens.tolist(), skip_special_tokens=False) == whole
    async with http.post("/tokenize", json=body) as answer:
        assert (await answer.json())["tokens"] == asked.tokens.tolist()


async def test_a_template_that_trims_messages_trims_the_last_one() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}!", {})
    messages = [{"role": "assistant", "content": " so "}]
    assert template.render(messages, False, continue_last=True) == "[so"
    hiding = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(ApiError, match="does not show the last"):
        hiding.render([*messages, *messages], False, continue_last=True)


@pytest.mark.parametrize("model", [None, "", MODEL])
async def test_the_model_s_name_may_be_left_out(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, model: str | None
) -> None:
    body = {"messages": HELLO, "max_tokens": 2, "model": model}
    for asked in (body, {key: value for key, value in body.items() if key != "model"}):
        async with http.post("/v1/chat/completions", json=asked) as answer:
            assert answer.status == 200
            assert (await answer.json())["model"] == MODEL
    assert len(runtime.of(Generate)) == 2
