"""Tools through the official client: calls whole and streamed, choices, histories, refusals."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from daemon.protocol.api import Generate
from tests.api.folder import build, tokenizer
from tests.api.scripted import MODEL, ScriptedRuntime, saying
from tests.api.test_tool_templates import LLAMA_LIKE
from tests.api.waiting import until_ready
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "The weather now.", "parameters": SCHEMA}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "get_time"}},
]
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris, 7e"}}'
MAX_LEN = 4096
TIME = '{"name": "get_time", "arguments": {}}'
BOTH = f"<tool_call>[{PARIS}, {TIME}]</tool_call>"


async def lengthen(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, **fields: Any) -> None:
    """Make room for tools in prompts."""
    if runtime.serving.max_len != MAX_LEN:
        runtime.change(max_len=MAX_LEN, context_len=MAX_LEN, **fields)
        async with asyncio.timeout(HANG_S):
            while (await client.models.retrieve(MODEL)).max_model_len != MAX_LEN:
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def long(runtime: ScriptedRuntime, client: openai.AsyncOpenAI) -> None:
    """Every test here has tools."""
    await lengthen(runtime, client)


def prompt(runtime: ScriptedRuntime, words: Tokenizer) -> str:
    """What the model was told by the newest request."""
    tokens = runtime.of(Generate)[-1].tokens.tolist()
    text: str = words.decode(tokens, skip_special_tokens=False)
    return text


async def ask(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    fields = {"messages": ASK, "tools": TOOLS, **fields}
    return await client.chat.completions.create(model=MODEL, **fields)


async def streamed(client: openai.AsyncOpenAI, **fields: Any) -> list[dict[str, Any]]:
    """Each choice put together from its pieces, as clients do."""
    choices: dict[int, dict[str, Any]] = {}
    async for chunk in await ask(client, stream=True, **fields):
        for piece in chunk.choices:
            whole = choices.setdefault(piece.index, {"content": "", "calls": [], "reason": None})
            assert whole["reason"] is None
            whole["content"] += piece.delta.content or ""
            whole["reason"] = piece.finish_reason
            for call in piece.delta.tool_calls or ():
                if call.id is not None:
                    assert call.index == len(whole["calls"]) and call.type == "function"
                    whole["calls"].append([call.id, call.function.name, []])
                assert call.index == len(whole["calls"]) - 1
                whole["calls"][call.index][2].append(call.function.arguments)
    return [choices[index] for index in sorted(choices)]


async def test_calls_of_a_whole_answer(runtime, client: openai.AsyncOpenAI, words: Tokenizer):
    runtime.script = saying(words, BOTH)
    answer = await ask(client)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["get_weather", "get_time"]
    assert calls[0].function.arguments == '{"city": "Paris, 7e"}'
    assert json.loads(calls[1].function.arguments) == {}
    assert len({call.id for call in calls}) == 2 and calls[0].id.startswith("call_")
    assert runtime.of(Generate)[0].sampling.grammar == ""
    told = prompt(runtime, words)
    assert told.startswith("<|im_start|>system\nYou can call functions.")
    assert '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}' in told


async def test_streamed_calls(runtime, client: openai.AsyncOpenAI, words: Tokenizer):
    runtime.script = saying(words, f"One moment.\n{BOTH}")
    (choice,) = await streamed(client)
    assert choice["content"] == "One moment.\n" and choice["reason"] == "tool_calls"
    (_, first, pieces), (_, second, rest) = choice["calls"]
    assert (first, second) == ("get_weather", "get_time")
    assert pieces[0] == "" and len(pieces) > 4 and "".join(pieces) == '{"city": "Paris, 7e"}'
    assert "".join(rest) == "{}"


async def test_each_choice_has_calls_of_its_own(runtime, client, words: Tokenizer):
    texts = [f"<tool_call>[{TIME}]</tool_call>", "No call.", BOTH]
    runtime.script = lambda message, stream: saying(words, texts[stream])(message, stream)
    for choices in (
        [
            (len(c.message.tool_calls or ()), c.message.content, c.finish_reason)
            for c in (await ask(client, n=3)).choices
        ],
        [(len(c["calls"]), c["content"] or None, c["reason"]) for c in await streamed(client, n=3)],
    ):
        assert choices == [
            (1, None, "tool_calls"),
            (0, "No call.", "stop"),
            (2, None, "tool_calls"),
        ]


async def test_what_is_no_call_is_content(runtime, client, words: Tokenizer):
    said = f"Use <tool_call>[{PARIS.replace('get_weather', 'other')}]</tool_call> then."
    runtime.script = saying(words, said)
    choice = (await ask(client)).choices[0]
    assert (choice.message.content, choice.finish_reason) == (said, "stop")
    assert choice.message.tool_calls is None
    (piece,) = await streamed(client)
    assert (piece["content"], piece["calls"], piece["reason"]) == (said, [], "stop")


async def test_a_call_that_is_cut_short(runtime, client, words: Tokenizer):
    runtime.script = saying(words, BOTH)
    num_tokens = len(words.encode(BOTH[: BOTH.index("7e")]).ids)
    choice = (await ask(client, max_tokens=num_tokens)).choices[0]
    assert choice.finish_reason == "length" and choice.message.content is None
    assert choice.message.tool_calls[0].function.arguments.startswith('{"city": "Paris')


@pytest.mark.parametrize("cut_after", ["get_time", '"Paris, 7e"}}', '"get_weather"', ", "])
async def test_a_forced_answer_that_is_cut_short_has_no_text(
    runtime, client, words: Tokenizer, cut_after: str
):
    runtime.script = saying(words, BOTH)
    num_tokens = len(words.encode(BOTH[: BOTH.index(cut_after) + len(cut_after)]).ids)
    fields = {"tool_choice": "required", "max_tokens": num_tokens}
    choice = (await ask(client, **fields)).choices[0]
    assert not choice.message.content and choice.finish_reason == "length"
    (piece,) = await streamed(client, **fields)
    assert (piece["content"], piece["reason"]) == ("", "length")
    assert len(piece["calls"]) == len(choice.message.tool_calls or ())


async def test_none_hides_the_tools(runtime, client, words: Tokenizer):
    runtime.script = saying(words, BOTH)
    choice = (await ask(client, tool_choice="none")).choices[0]
    assert (choice.message.content, choice.finish_reason) == (BOTH, "stop")
    assert "get_weather" not in prompt(runtime, words)
    (piece,) = await streamed(client, tools=[])
    assert (piece["content"], piece["calls"]) == (BOTH, [])


async def test_logprobs_of_all_tokens_come_with_calls(runtime, client, words: Tokenizer):
    runtime.script = saying(words, BOTH)
    tokens = []
    async for chunk in await ask(client, stream=True, logprobs=True):
        if chunk.choices and chunk.choices[0].logprobs:
            tokens += [entry.token for entry in chunk.choices[0].logprobs.content]
    assert "".join(tokens) == BOTH
    whole = (await ask(client, logprobs=True)).choices[0]
    assert [entry.token for entry in whole.logprobs.content] == tokens


async def test_results_go_back_to_the_model(runtime, client, words: Tokenizer):
    runtime.script = saying(words, f"Let me see. {BOTH}")
    message = (await ask(client)).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {number}"}
        for number, call in enumerate(message.tool_calls)
    ]
    system = {"role": "developer", "content": "Be brief."}
    runtime.script = saying(words, "It rains.")
    history = [system, *ASK, message.to_dict(), *results]
    answer = await ask(client, messages=history, tools=TOOLS)
    assert answer.choices[0].message.content == "It rains."
    told = prompt(runtime, words)
    assert told.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert f"<|im_start|>assistant\nLet me see. {BOTH}<|im_end|>\n" in told
    assert (
        "<|im_start|>user\n<tool_response>\nresult 0\n</tool_response>\n"
        "<tool_response>\nresult 1\n</tool_response><|im_end|>\n" in told
    )


async def test_forced_calls_have_a_grammar(runtime, client, words: Tokenizer):
    runtime.script = saying(words, BOTH)
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice, several, names in (
        ("required", None, {"get_weather", "get_time"}),
        ("required", False, {"get_weather", "get_time"}),
        (named, None, {"get_time"}),
    ):
        fields = {} if several is None else {"parallel_tool_calls": several}
        await ask(client, tool_choice=choice, **fields)
        grammar = runtime.of(Generate)[-1].sampling.grammar
        assert {name for name in ("get_weather", "get_time") if name in grammar} == names
        assert ("{0,15}" in grammar) == (choice == "required" and several is None)
    strict = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    await ask(client, tools=strict)
    assert "TEXT" in runtime.of(Generate)[-1].sampling.grammar


def _tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BAD = [
    ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
    ("tools[0].function.name", {"tools": [_tool(name="two words")]}),
    ("tools[0].function.name", {"tools": [_tool(name="f\n")]}),
    ("tools[0].function.name", {"tools": [_tool(name="f" * 65)]}),
    ("tools[1].function.name", {"tools": [_tool(), _tool()]}),
    ("tools[0].function.returns", {"tools": [_tool(returns={})]}),
    ("tools[0].function.parameters", {"tools": [_tool(parameters=[1])]}),
    ("tools[0].function.parameters.type", {"tools": [_tool(parameters={"type": "string"})]}),
    ("tools", {"tools": [_tool(name=f"f{number}") for number in range(129)]}),
    ("tool_choice", {"tool_choice": "always"}),
    ("tool_choice", {"tools": None, "tool_choice": "required"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "other"}}}),
    ("parallel_tool_calls", {"parallel_tool_calls": 2}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("function_call", {"function_call": "auto"}),
    ("messages[0].tool_calls", {"messages": [{"role": "user", "tool_calls": [CALL]}]}),
    ("messages[0].tool_calls[0].id", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
    ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "5"}]}),
]


@pytest.mark.parametrize(("param", "fields"), BAD)
async def test_refusals_name_the_field(runtime, client, param: str, fields: dict[str, Any]):
    body = {"messages": ASK, "tools": TOOLS, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=ASK, extra_body=body)
    assert caught.value.param == param
    assert not runtime.of(Generate)


async def test_a_model_of_llamas_kind(tmp_path: Path):
    folder = build(tmp_path / MODEL)
    (folder / "chat_template.jinja").write_text(LLAMA_LIKE)
    words = tokenizer()
    words.add_special_tokens(["<|python_tag|>"])
    words.save(str(folder / "tokenizer.json"))
    said = '<|python_tag|>{"name": "get_time", "parameters": {}}; ' + PARIS
    async with ScriptedRuntime(folder) as runtime:
        await until_ready(runtime.url)
        runtime.script = saying(words, said)
        async with openai.AsyncOpenAI(base_url=f"{runtime.url}/v1", api_key="none") as client:
            await lengthen(runtime, client, vocab_size=401)
            (choice,) = await streamed(client)
            (_, first, _), (_, second, _) = choice["calls"]
            assert (choice["content"], first, second) == ("", "get_time", "get_weather")
            assert f"<user>{json.dumps(described_tools())}What" in prompt(runtime, words)
            runtime.script = saying(words, '{"city": "Paris"}')
            assert (await streamed(client))[0]["content"] == '{"city": "Paris"}'


def described_tools() -> list[dict[str, Any]]:
    """The tools as templates get them."""
    time = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
    return [TOOLS[0], {"type": "function", "function": time}]
