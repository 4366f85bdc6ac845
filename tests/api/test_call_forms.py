"""Calls in gpt-oss's channels and in Gemma 4's turns: read, streamed, and shown in histories."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from daemon.api.answer.channels import ChannelReader
from daemon.api.answer.thoughts import AnswerReader
from daemon.api.answer.turns import TurnReader
from daemon.api.request.schema import Message
from daemon.api.request.tool_schema import CalledFunction, Function, Tool, ToolCall
from daemon.api.sandbox.chat_template import ChatTemplate
from daemon.api.sandbox.conversation import CHANNELS, TURNS, template_message
from daemon.api.text import markers
from daemon.api.tools import format as forms
from daemon.api.tools.history import described
from daemon.api.tools.reader import CallReader
from tests.api.call_forms import CHANNELS_LIKE, TURNS_LIKE
from tests.api.folder import build, tokenizer
from tests.api.scripted import MODEL, ScriptedRuntime, saying
from tests.api.test_tool_choice import boxed, tool
from tests.api.waiting import until_ready
from tests.soak import tries

NAMES = frozenset({"add", "now"})
CUTS = st.lists(st.integers(0, 160), max_size=8)
THINKS = "<|channel|>analysis<|message|>we think<|end|><|start|>assistant"
ADDS = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'
Found = tuple[str, str, list[tuple[str, str]]]


def found_in(text: str, reader: AnswerReader, cuts: list[int]) -> Found:
    """The thoughts, the words and the calls of an answer that comes in pieces."""
    calls = CallReader(NAMES, bare=False)
    thought, pieces, at = "", [], 0
    for cut in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        split, at = reader.push(text[at:cut]), cut
        thought += split.thought
        pieces += calls.push(split.answer)
    split = reader.finish()
    pieces += calls.push(split.answer) + calls.finish()
    made: list[tuple[str, str]] = []
    for piece in pieces:
        if piece.kind == "call":
            made.append((piece.text, ""))
        elif piece.kind == "arguments":
            made[-1] = (made[-1][0], made[-1][1] + piece.text)
    words = "".join(piece.text for piece in pieces if piece.kind == "text")
    return thought + split.thought, words, made


@pytest.mark.parametrize(
    ("text", "thought", "words", "calls"),
    [
        (THINKS + ADDS + "<|call|>", "we think", "", [("add", '{"a": 1}')]),
        (THINKS + ADDS, "we think", "", [("add", '{"a": 1}')]),  # as its end is not shown
        (
            ' to=functions.add<|channel|>commentary json<|message|>{"a": "<b>"}',
            "",
            "",
            [("add", '{"a": "<b>"}')],
        ),
        (
            "<|channel|>commentary<|message|>First.<|end|><|start|>assistant" + ADDS,
            "",
            "First.",
            [("add", '{"a": 1}')],
        ),
        (
            ADDS + "<|call|><|start|>assistant<|channel|>commentary to=functions.now<|message|>",
            "",
            "",
            [("add", '{"a": 1}'), ("now", "{}")],
        ),
        (ADDS.replace('{"a": 1}', ' {"a": [1'), "", "", [("add", '{"a": [1')]),
        (ADDS.replace("add", "other") + "<|call|>", "", '{"a": 1}', []),
        (ADDS.replace("functions.add", "python"), "", '{"a": 1}', []),
        ("to=be or not", "", "", []),
        (" to be or not", "", " to be or not", []),
    ],
)
@settings(max_examples=tries(20, 300))
@given(cuts=CUTS)
def test_a_call_in_a_channel_is_a_call(
    text: str, thought: str, words: str, calls: list[tuple[str, str]], cuts: list[int]
) -> None:
    assert found_in(text, ChannelReader(NAMES), cuts) == (thought, words, calls)


PARIS = '<|tool_call>call:add{city:<|"|>Paris, "7e" {<|"|>,n:-1.5,all:true,of:{x:[1,null]}}'
GIVEN = {"city": 'Paris, "7e" {', "n": -1.5, "all": True, "of": {"x": [1, None]}}


@pytest.mark.parametrize(
    ("text", "thought", "words", "calls"),
    [
        ("<|channel>thought\nwhy\nnot\n<channel|>Yes.", "why\nnot", "Yes.", []),
        ("<|channel>thought\n<channel|>Yes <b>.", "", "Yes <b>.", []),
        ("<|channel>thought<channel|>\nYes\nno", "", "Yes\nno", []),
        ("<|channel>thought\ncut <chan", "cut <chan", "", []),
        (PARIS + "<tool_call|>", "", "", [("add", GIVEN)]),
        (PARIS, "", "", [("add", GIVEN)]),  # as its end may not be shown
        (
            f"<|channel>thought\na<channel|>I add.\n{PARIS}<tool_call|>"
            "<|tool_call>call:now{}<tool_call|><|tool_response>response:now{}",
            "a",
            "I add.\n",
            [("add", GIVEN), ("now", {})],
        ),
        ('<|tool_call>call:add{"a": ["x\\n",{b:c}]}<tool_call|>', "", "",
         [("add", {"a": ["x\n", {"b": "c"}]})]),
        ("<|tool_call>call:other{}<tool_call|>.", "", "<|tool_call>call:other{}<tool_call|>.", []),
        ("<|tool_call>call:add{a<tool_call|>", "", "<|tool_call>call:add{a<tool_call|>", []),
        ("<|tool_call>call:now{}x<tool_call|>", "", "<|tool_call>call:now{}x<tool_call|>", []),
        (f"<|tool_call>call:add{{a:{'[' * 999}", "", f"<|tool_call>call:add{{a:{'[' * 999}", []),
        ("a <|tool", "", "a <|tool", []),
    ],
)  # fmt: skip
@settings(max_examples=tries(20, 300))
@given(cuts=CUTS)
def test_a_call_in_a_turn_is_a_call(
    text: str, thought: str, words: str, calls: list[tuple[str, Any]], cuts: list[int]
) -> None:
    found = found_in(text, TurnReader(NAMES), cuts)
    assert found[:2] == (thought, words)
    assert [(name, json.loads(arguments)) for name, arguments in found[2]] == calls


def test_one_call_is_enough_where_one_is_wanted() -> None:
    twice = "<|tool_call>call:now{}<tool_call|>" * 2 + "more"
    assert found_in(twice, TurnReader(NAMES, several=False), [])[1:] == ("", [("now", "{}")])
    twice = (ADDS + "<|call|><|start|>assistant") * 2
    found = found_in(twice, ChannelReader(NAMES, several=False), [])
    assert found[1:] == ("", [("add", '{"a": 1}')])


def test_without_tools_nothing_is_a_call() -> None:
    assert TurnReader().push(PARIS + "<tool_call|>").answer == PARIS + "<tool_call|>"
    assert ChannelReader().push(ADDS + "<|call|>").answer == '{"a": 1}'


@pytest.mark.parametrize("form", [forms.CHANNELS, forms.TURNS])
def test_a_grammar_keeps_no_model_from_its_own_form(form: forms.Format) -> None:
    for fields in ({}, {"parallel_tool_calls": False}, {"tools": [tool(strict=True)]}):
        box = boxed(form, **fields)
        assert box is not None and box.grammar == ""
        assert box.several is fields.get("parallel_tool_calls", True)
    asked = boxed(form, tool_choice="required")
    assert asked == boxed(forms.SMOLLM, tool_choice="required")


def test_strict_calls_of_channels_are_held_in_their_own_form() -> None:
    ids = {text: number for number, text in enumerate((markers.MESSAGE, *markers.MESSAGE_ENDS))}
    tokens = markers.MarkerTokens({}, {}, (), channels=ids)
    box = boxed(forms.CHANNELS, tokens, tools=[tool(strict=True), tool(name="g")])
    assert box is not None and "to=functions.f" in box.grammar and not box.only_calls
    loose = boxed(forms.CHANNELS, tokens)
    assert loose is not None and loose.grammar == ""


def test_markers_that_decoding_would_leave_out_are_read() -> None:
    texts = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|call|>"]
    made = Tokenizer(models.BPE())
    made.add_special_tokens([AddedToken(text, special=True) for text in texts])
    assert markers.marker_tokens(made).thoughts == frozenset(range(len(texts)))


TOOLS = described([Tool("function", Function("add")), Tool("function", Function("now"))])
CALLS = [
    ToolCall("1", CalledFunction("add", '{"city": "Paris"}')),
    ToolCall("2", CalledFunction("now", "{}")),
]


def history(*more: Message, words: str = "") -> list[dict[str, Any]]:
    return [
        template_message(message)
        for message in (
            Message("user", "Add!"),
            Message("assistant", words, tool_calls=CALLS, reasoning_content="hm"),
            Message("tool", '{"sum": 2}', tool_call_id="1"),
            Message("tool", "noon", tool_call_id="2"),
            *more,
        )
    ]


def test_channels_show_a_history_as_their_template_wants() -> None:
    template = ChatTemplate(CHANNELS_LIKE, {})
    assert (template.calls, template.thoughts) == (forms.CHANNELS, CHANNELS)
    adds = (
        '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"city": "Paris"}'
    )
    results = "to=assistant<|channel|>commentary<|message|>"
    for words, thought in (("", "hm"), ("I add.", "hm\nI add.")):
        prompt = template.render(history(words=words), tools=TOOLS)
        assert prompt.partition("<|start|>user")[2] == (
            "<|message|>Add!<|end|>"
            f"<|start|>assistant<|channel|>analysis<|message|>{thought}<|end|>{adds}<|call|>"
            f'<|start|>functions.add {results}"{{\\"sum\\": 2}}"<|end|>'
            "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
            f'<|start|>functions.now {results}"noon"<|end|><|start|>assistant'
        )


def test_turns_show_a_history_as_their_template_wants() -> None:
    template = ChatTemplate(TURNS_LIKE, {})
    assert (template.calls, template.thoughts) == (forms.TURNS, TURNS)
    called = (
        '<|turn>model\n<|tool_call>call:add{city:<|"|>Paris<|"|>}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>"
        "<|tool_response>response:add{sum:2}<tool_response|>"
        '<|tool_response>response:now{value:<|"|>noon<|"|>}<tool_response|>'
    )
    ends = "<|channel>thought\n<channel|>"
    assert template.render(history(), tools=TOOLS).endswith(f"Add!<turn|>\n{called}{ends}")
    said = template.render(history(Message("assistant", "Two."), Message("user", "And?")))
    assert said.endswith(f"{called}Two.<turn|>\n<|turn>user\nAnd?<turn|>\n<|turn>model\n{ends}")
    before = template.render(history(words="I add."), tools=TOOLS)
    assert before.endswith(f"<|turn>model\nI add.<turn|>\n{called}{ends}")


def test_a_template_that_asks_for_results_itself_gets_them_as_they_are() -> None:
    asks = TURNS_LIKE + "{% for m in messages if m['role'] == 'tool' %}{{ m.content }}{% endfor %}"
    assert ChatTemplate(asks, {}).render(history(), tools=TOOLS).count("noon") == 2


FORMS = {
    "channels": (CHANNELS_LIKE, THINKS + ADDS),
    "turns": (
        TURNS_LIKE,
        "<|channel>thought\nwe think\n<channel|><|tool_call>call:add{a:1}<tool_call|>",
    ),
}
ASK: Any = [{"role": "user", "content": "Add!"}]
GIVEN_TOOLS: Any = [{"type": "function", "function": {"name": "add"}}]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=FORMS)
async def asked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[openai.AsyncOpenAI]:
    template, says = FORMS[request.param]
    folder: Path = build(tmp_path_factory.mktemp("forms") / "m")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    async with ScriptedRuntime(folder) as runtime:
        runtime.script = saying(tokenizer(), says)
        await until_ready(runtime.url)
        yield openai.AsyncOpenAI(base_url=runtime.url + "/v1", api_key="none", max_retries=0)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_client_gets_calls_and_thoughts(asked: openai.AsyncOpenAI) -> None:
    whole = await asked.chat.completions.create(model=MODEL, messages=ASK, tools=GIVEN_TOOLS)
    message = whole.choices[0].message
    assert whole.choices[0].finish_reason == "tool_calls" and message.content is None
    assert message.tool_calls is not None and message.model_extra is not None
    (call,) = message.tool_calls
    assert call.type == "function" and json.loads(call.function.arguments) == {"a": 1}
    assert message.model_extra["reasoning_content"] == "we think"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_client_gets_calls_and_thoughts_in_deltas(asked: openai.AsyncOpenAI) -> None:
    thought = arguments = reason = ""
    names = []
    async for chunk in await asked.chat.completions.create(
        model=MODEL, messages=ASK, tools=GIVEN_TOOLS, stream=True
    ):
        delta = chunk.choices[0].delta
        assert not delta.content
        thought += (delta.model_extra or {}).get("reasoning_content") or ""
        for call in delta.tool_calls or ():
            assert call.index == 0 and call.function is not None
            names += [call.function.name] * (call.id is not None)
            arguments += call.function.arguments or ""
        reason = chunk.choices[0].finish_reason or reason
    assert (thought, names, json.loads(arguments)) == ("we think", ["add"], {"a": 1})
    assert reason == "tool_calls"
