"""Chat completions through the official client."""

import openai
import pytest
from tokenizers import Tokenizer

from daemon.memory.hashing import chain_hashes
from daemon.protocol.api import AbortRequest, FinishSequence, Generate
from tests.api.scripted import BLOCK_SIZE, MAX_LEN, MODEL, ScriptedRuntime, saying

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = [{"role": "user", "content": "hello"}]
PROMPT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
EMOJI = "Hello 🙂👩‍👩‍👧 日本語, the fox."


async def test_whole_answer(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer):
    runtime.script, runtime.cached = saying(words, EMOJI), 3
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, seed=7)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    choice = answer.choices[0]
    assert choice.message.content == EMOJI
    assert choice.message.role == "assistant" and choice.finish_reason == "stop"
    asked = runtime.of(Generate)[0]
    assert asked.tokens.tolist() == words.encode(PROMPT, add_special_tokens=False).ids
    assert asked.max_tokens == MAX_LEN - len(asked.tokens)
    assert asked.hashes == chain_hashes(asked.tokens.tolist(), BLOCK_SIZE)
    assert asked.sampling.seed == 7
    said = len(words.encode(EMOJI, add_special_tokens=False).ids) + 1
    assert answer.usage.completion_tokens == said
    assert answer.usage.prompt_tokens == len(asked.tokens)
    assert answer.usage.total_tokens == said + len(asked.tokens)
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert not runtime.of(AbortRequest) and not runtime.of(FinishSequence)


async def test_stream(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer):
    runtime.script = saying(words, EMOJI)
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    first, last, counts = chunks[0].choices[0], chunks[-2].choices[0], chunks[-1]
    assert (first.delta.role, first.delta.content) == ("assistant", "")
    assert last.finish_reason == "stop" and last.delta.content is None
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(pieces) == EMOJI
    assert not any("\ufffd" in piece for piece in pieces)
    assert counts.choices == [] and counts.usage.completion_tokens > 10
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_stop_string_over_tokens(
    runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer
):
    runtime.script = saying(words, "one two three four five six")
    for stream in (False, True):
        answer = await client.chat.completions.create(
            model=MODEL, messages=HELLO, stop=["ee fo", "zzz"], stream=stream
        )
        if stream:
            chunks = [chunk async for chunk in answer]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert (text, reason) == ("one two thr", "stop")
    await runtime.until(FinishSequence, 2)
    assert not runtime.of(AbortRequest)


async def test_several_choices_and_logprobs(
    runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer
):
    runtime.script = saying(words, "one two")
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, n=3, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(runtime.of(Generate)) == 1 and runtime.of(Generate)[0].n == 3
    for choice in answer.choices:
        assert choice.message.content == "one two"
        content = choice.logprobs.content
        assert "".join(entry.token for entry in content) == "one two"
        assert bytes(content[0].bytes).decode() == content[0].token
        assert content[0].logprob == -0.5
        assert [top.logprob for top in content[0].top_logprobs] == [-1.0, -2.0]
        assert content[0].top_logprobs[0].token == content[0].token


async def test_streamed_logprobs(
    runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words: Tokenizer
):
    runtime.script = saying(words, "one 🙂 two")
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, stream=True
    )
    entries = [
        entry
        async for chunk in stream
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == "one 🙂 two"
    assert all(entry.top_logprobs == [] for entry in entries)


async def test_roles_and_parts(runtime: ScriptedRuntime, client: openai.AsyncOpenAI, words):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await client.chat.completions.create(
        model="tiny-folder",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "ok", "refusal": None},
            {"role": "tool", "content": "5", "tool_call_id": "a"},
        ],
        max_completion_tokens=2,
    )
    text = words.decode(runtime.of(Generate)[0].tokens.tolist(), skip_special_tokens=False)
    assert "<|im_start|>system\nbe brief<|im_end|>" in text
    assert "<|im_start|>user\none\ntwo<|im_end|>" in text
    with pytest.raises(openai.BadRequestError, match="needs its call"):
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "tool", "content": "5"}]
        )
