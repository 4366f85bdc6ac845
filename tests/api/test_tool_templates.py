"""Tools, calls and results in prompts: by the model's own template, and in words."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from daemon.api.request.schema import Message
from daemon.api.request.tool_schema import CalledFunction, Function, Tool, ToolCall
from daemon.api.sandbox.chat_template import ChatTemplate
from daemon.api.tools.format import LLAMA, QWEN, SMOLLM
from daemon.api.tools.history import (
    EXAMPLE,
    INSTRUCTIONS,
    calls_of,
    described,
    in_words,
    one_call_each,
)
from daemon.api.tools.reader import CallReader
from tests.api.folder import TEMPLATE
from tests.house.source import ROOT

QWEN_LIKE = """\
{%- if tools %}
    {{- '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
    {{- '\\nCall them so: <tool_call>{"name": "...", "arguments": {}}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content }}
        {{- '</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LLAMA_LIKE = """\
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<assistant>{"name": "' + call.name + '", "parameters": ' }}
        {{- (call.arguments | tojson) + '}\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<ipython>' + message.content + '\\n' }}
    {%- else %}
        {{- '<' + message.role + '>' + (tools | tojson if tools and loop.first else '') }}
        {{- message.content + '\\n' }}
    {%- endif %}
{%- endfor %}
"""
TOOLS = described(
    [
        Tool("function", Function("add", "Adds.", {"type": "object", "properties": {"a": {}}})),
        Tool("function", Function("now", strict=True)),
    ]
)
CALLS = [
    ToolCall("1", CalledFunction("add", '{"a": "é"}')),
    ToolCall("2", CalledFunction("now", "not {json")),
]


def conversation() -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Add!"},
        {"role": "assistant", "content": "", "tool_calls": calls_of(CALLS)},
        {"role": "tool", "content": "noon", "tool_call_id": "2"},
        {"role": "tool", "content": "five", "tool_call_id": "1"},
        {"role": "user", "content": "And?"},
    ]


def test_a_template_that_knows_tools_gets_them_as_transformers_gives_them() -> None:
    template = ChatTemplate(QWEN_LIKE, {})
    assert template.calls == QWEN
    expected, _ = render_jinja_template(
        conversations=[conversation()],
        tools=TOOLS,
        chat_template=QWEN_LIKE,
        add_generation_prompt=True,
    )
    rendered = template.render(conversation(), tools=TOOLS)
    assert rendered == expected[0]
    assert QWEN.write([("add", {"a": "é"})]) in rendered
    assert '"arguments": "not {json"' in rendered
    assert '"strict"' not in rendered
    assert "Tools:" not in template.render(conversation())


def test_a_template_of_one_call_a_message_gets_each_with_its_result() -> None:
    template = ChatTemplate(LLAMA_LIKE, {})
    assert template.calls == LLAMA
    assert template.render(conversation(), tools=TOOLS).splitlines()[1:] == [
        '<assistant>{"name": "add", "parameters": {"a": "é"}}',
        "<ipython>five",
        '<assistant>{"name": "now", "parameters": "not {json"}',
        "<ipython>noon",
        "<user>And?",
    ]
    plain = [{"role": "user", "content": "a"}, {"role": "tool", "content": "lost"}]
    assert one_call_each(plain) == plain


@pytest.mark.parametrize(
    "source",
    [
        TEMPLATE,
        "{{ messages[0].content }} <tool_call> of no tools",
        QWEN_LIKE.replace("<tool_call>\\n", "<tool_call>\\n<function="),
        QWEN_LIKE.replace("{{- '<|im_start|>system", "{{- raise_exception('no') + '"),
    ],
)
def test_other_templates_get_tools_in_words(source: str) -> None:
    template = ChatTemplate(source, {})
    assert template.calls == SMOLLM
    assert template.render(conversation(), tools=TOOLS) == template.render(
        in_words(conversation(), TOOLS)
    )


def test_tools_in_words() -> None:
    system, user, calls, results, more = in_words(conversation(), TOOLS)
    assert system["role"] == "system" and '"name": "add"' in system["content"]
    assert EXAMPLE in system["content"]
    assert (user, more) == (conversation()[0], conversation()[-1])
    said = SMOLLM.write([("add", {"a": "é"}), ("now", "not {json")])
    assert calls == {"role": "assistant", "content": said}
    assert results["role"] == "user"
    assert results["content"] == (
        "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nfive\n</tool_response>"
    )
    assert in_words(conversation(), []) == [user, calls, results, more]


def test_the_manual_shows_what_models_are_told() -> None:
    assert f"```text\n{INSTRUCTIONS}\n```" in (ROOT / "docs" / "api.md").read_text("utf-8")


def test_the_example_is_read_as_a_call() -> None:
    reader = CallReader(frozenset({"function_name"}), bare=False)
    assert [piece.kind for piece in reader.push(EXAMPLE)] == ["call", "arguments", "mark"]
    assert reader.num_calls == 1


@pytest.mark.parametrize("arguments", ["", " ", "null", None, "{}"])
def test_a_call_without_arguments_has_an_empty_object(arguments: str | None) -> None:
    (call,) = calls_of([ToolCall("1", CalledFunction("now", arguments))])
    assert call["function"]["arguments"] == {}
    for source in (QWEN_LIKE, LLAMA_LIKE):
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        assert ": {}" in ChatTemplate(source, {}).render([message], tools=TOOLS)


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', "[" * 500, '{"a":' * 80 + "1" + "}" * 80]
)
def test_arguments_that_cannot_be_shown_as_an_object_stay_text(arguments: str) -> None:
    (call,) = calls_of([ToolCall("1", CalledFunction("add", arguments))])
    assert call["function"]["arguments"] == arguments
    assert Message("assistant", tool_calls=[ToolCall("1", CalledFunction("add", arguments))])
