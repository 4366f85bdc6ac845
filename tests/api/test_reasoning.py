"""Thoughts apart from answers: the reader, and the API through the official client."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.api.answer.channels import ChannelReader
from daemon.api.answer.thoughts import ThoughtReader
from daemon.api.sandbox.chat_template import ChatTemplate
from daemon.api.sandbox.conversation import CHANNELS, TAGS
from tests.api.folder import build, tokenizer
from tests.api.scripted import MODEL, ScriptedRuntime, saying
from tests.api.waiting import until_ready

ASK: Any = [{"role": "user", "content": "Why?"}]
WRITES = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}A:"
CHANNELLED = "{% for m in messages %}<|channel|>{{ m.content }}{% endfor %}"
OPENS = WRITES + "{% if add_generation_prompt %}<think>\n{% endif %}"


def read(text: str, reader: ThoughtReader | ChannelReader, cuts: list[int]) -> tuple[str, str]:
    at = 0
    thought = answer = ""
    for cut in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        split = reader.push(text[at:cut])
        thought, answer, at = thought + split.thought, answer + split.answer, cut
    split = reader.finish()
    return thought + split.thought, answer + split.answer


@pytest.mark.parametrize(
    ("text", "is_open", "thought", "answer"),
    [
        ("<think>\nwhy\nnot\n</think>\n\nYes.", False, "why\nnot", "Yes."),
        ("\n<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("so\n</think>\n\nYes.", True, "so", "Yes."),
        ("Yes <think>no</think>", False, "", "Yes <think>no</think>"),
        ("<thin", False, "", "<thin"),
        ("<think>never ends </thin", False, "never ends </thin", ""),
        ("</think>\nYes. \n", True, "", "Yes. \n"),
        ("a < b <think", True, "a < b <think", ""),
        ("  Yes", False, "", "  Yes"),
        ("", True, "", ""),
    ],
)
@given(cuts=st.lists(st.integers(0, 40)))
def test_both_sides_whatever_the_pieces(
    text: str, is_open: bool, thought: str, answer: str, cuts: list[int]
) -> None:
    assert read(text, ThoughtReader(is_open), cuts) == (thought, answer)


@given(text=st.text("<>/think ab\n"), is_open=st.booleans(), cuts=st.lists(st.integers(0, 60)))
def test_pieces_change_nothing_and_no_letter_is_lost(
    text: str, is_open: bool, cuts: list[int]
) -> None:
    whole = read(text, ThoughtReader(is_open), [])
    assert read(text, ThoughtReader(is_open), cuts) == whole
    letters = "".join("".join(whole).split())
    marked = "".join(text.split())
    assert letters in (marked, marked.replace("<think>", "", 1), _unmarked(marked, is_open))


def _unmarked(text: str, is_open: bool) -> str:
    """Without the first markers, or the one that closes an open thought."""
    text = text if is_open else text.replace("<think>", "", 1)
    return text.replace("</think>", "", 1)


@pytest.mark.parametrize(
    ("source", "thoughts"),
    [(WRITES, TAGS), (OPENS, TAGS), (CHANNELLED, CHANNELS), ("{{ messages }}", "")],
)
def test_a_template_shows_how_its_model_thinks(source: str, thoughts: str) -> None:
    assert ChatTemplate(source, {}).thoughts == thoughts


IN_CHANNELS = "<|channel|>analysis<|message|>we think<|end|><|start|>assistant"
IN_CHANNELS += "<|channel|>final<|message|>the words"


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        (IN_CHANNELS, "we think", "the words"),
        ("<|channel|>final<|message|>a <| b", "", "a <| b"),
        ("<|channel|>analysis<|message|>cut <|e", "cut <|e", ""),
        ("<|channel|>commentary<|message|>so<|end|><|start|>assistant<|chan", "", "so"),
        ("<|channel|>analysis<|message|>a<|channel|>analysis<|message|>b", "ab", ""),
        ("no channel", "", "no channel"),
        ("<|chan", "", "<|chan"),
        ("", "", ""),
    ],
)
@given(cuts=st.lists(st.integers(0, 90)))
def test_channels_are_read_whatever_the_pieces(
    text: str, thought: str, answer: str, cuts: list[int]
) -> None:
    assert read(text, ChannelReader(), cuts) == (thought, answer)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("template", "says"),
    [
        (WRITES, "<think>\nwe think\n</think>\n\nthe words"),
        (OPENS, "we think\n</think>\n\nthe words"),
        (CHANNELLED, IN_CHANNELS),
    ],
)
async def test_an_answer_and_its_deltas_have_them_apart(
    template: str, says: str, tmp_path: Path
) -> None:
    folder = build(tmp_path / "m")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    words = tokenizer()
    async with ScriptedRuntime(folder) as runtime:
        runtime.script = saying(words, says)
        await until_ready(runtime.url)
        client = openai.AsyncOpenAI(base_url=runtime.url + "/v1", api_key="none", max_retries=0)
        whole = await client.chat.completions.create(model=MODEL, messages=ASK)
        message = whole.choices[0].message
        assert message.content == "the words"
        assert message.model_extra is not None
        assert message.model_extra["reasoning_content"] == "we think"
        assert whole.usage is not None and whole.usage.completion_tokens > 4
        thought = answer = ""
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=ASK, stream=True
        ):
            delta = chunk.choices[0].delta
            more = (delta.model_extra or {}).get("reasoning_content") or ""
            assert not (more and answer), "a thought comes before the answer"
            thought, answer = thought + more, answer + (delta.content or "")
        assert (thought, answer) == ("we think", "the words")
        bound = await client.chat.completions.create(
            model=MODEL, messages=ASK, extra_body={"guided_regex": "(?s:.)*"}
        )
        assert bound.choices[0].message.content == says
