"""Plain completions: the four forms of a prompt, echo, logprobs, several choices."""

import openai
import pytest
from openai.types import CompletionChoice
from tokenizers import Tokenizer

from daemon.protocol.api import Generate
from tests.api.folder import BOS
from tests.api.scripted import MODEL, ScriptedRuntime, saying

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_text_prompt(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer):
    answer = await client.completions.create(model=MODEL, prompt="hello world")
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    asked = runtime.of(Generate)[0]
    assert asked.tokens.tolist() == words.encode("hello world").ids and asked.tokens[0] == BOS
    assert asked.max_tokens == 16
    said = [asked.tokens.tolist()[i % len(asked.tokens)] for i in range(16)]
    assert answer.choices[0].text == words.decode(said)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 16


async def test_several_prompts(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words):
    answer = await client.completions.create(
        model=MODEL, prompt=["hello", "one two"], n=2, max_tokens=3, echo=True, best_of=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    asked = runtime.of(Generate)
    assert len(asked) == 2 and asked[0].request != asked[1].request
    for choice, prompt in zip(
        answer.choices, ["hello", "hello", "one two", "one two"], strict=True
    ):
        said = [words.encode(prompt).ids[i % len(words.encode(prompt).ids)] for i in range(3)]
        assert choice.text == prompt + words.decode(said)
    assert answer.usage.prompt_tokens == sum(len(message.tokens) for message in asked)
    assert answer.usage.completion_tokens == 12


async def test_token_prompts(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words):
    ids = words.encode("hello world", add_special_tokens=False).ids
    one = await client.completions.create(model=MODEL, prompt=ids, max_tokens=1, echo=True)
    assert one.choices[0].text.startswith("hello world")
    two = await client.completions.create(model=MODEL, prompt=[ids, ids[:1]], max_tokens=1)
    assert len(two.choices) == 2
    assert [message.tokens.tolist() for message in runtime.of(Generate)] == [ids, ids, ids[:1]]


async def test_stream_with_echo(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words):
    runtime.script = saying(words, "one two")
    stream = await client.completions.create(
        model=MODEL, prompt="hello", stream=True, echo=True, n=2
    )
    texts, reasons = {0: "", 1: ""}, {}
    async for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason
    assert texts == {0: "helloone two", 1: "helloone two"}
    assert reasons == {0: "stop", 1: "stop"}


async def test_logprobs(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words):
    runtime.script = saying(words, "one 🙂")
    answer = await client.completions.create(model=MODEL, prompt="hello", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(words.encode("one 🙂").ids) - 1
    assert logprobs.tokens[0] == words.decode(words.encode("one", add_special_tokens=False).ids[:1])
    assert logprobs.token_logprobs[0] == -0.5
    # The drawn token is among the best: its own value stands.
    assert logprobs.top_logprobs[0][logprobs.tokens[0]] == -0.5
    assert len(logprobs.top_logprobs[0]) == 2
    assert logprobs.text_offset[:2] == [0, len(logprobs.tokens[0])]
    assert any(token.startswith("bytes:\\x") for token in logprobs.tokens)


@pytest.mark.parametrize("stop", [None, "w"])
async def test_several_tokens_in_one_message_are_as_one_each(
    runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words, stop: str | None
):
    """Also where a stop string, or the end, is in the middle of what came together."""

    async def asked(tokens_a_step: int) -> CompletionChoice:
        runtime.tokens_a_step = tokens_a_step
        runtime.script = saying(words, "one two three")
        answer = await client.completions.create(
            model=MODEL, prompt="hello", logprobs=2, stop=stop, max_tokens=50
        )
        return answer.choices[0]

    one_each = await asked(1)
    assert one_each.finish_reason == "stop" and one_each.text.startswith("one t")
    for tokens_a_step in (3, 4, 50):
        assert await asked(tokens_a_step) == one_each


async def test_half_a_character(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words):
    ids = words.encode("🙂", add_special_tokens=False).ids
    assert len(ids) == 4
    runtime.script = saying(words, "🙂", end=None)
    answer = await client.completions.create(model=MODEL, prompt="hello", max_tokens=3)
    assert answer.choices[0].text == words.decode(ids[:3])
    assert answer.choices[0].finish_reason == "length"
