"""Asking a daemon for greedy answers, and holding them against the reference, or each other."""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from tokenizers import Tokenizer

from tests.e2e.prompts import LICENCE, QUESTIONS, licence_ids
from tests.e2e.reference import Answer, answers

NEAR_TIE = 1e-4
"""Two logits closer than this may change places between two right computations in float32."""
_HALF_A_CHARACTER = "\ufffd"


class Case(NamedTuple):
    """A prompt and what greedy decoding must make of it."""

    question: str  # the chat message that the prompt is, or ""
    expected: Answer


def cases(
    folder: str, count: int, left_out: Collection[int] = (), asked: Sequence[str] = QUESTIONS
) -> list[Case]:
    """These questions and the stretches with their references, without those as long as one of
    those left out.
    """
    found = answers(folder, prompts(folder, left_out, asked), count)
    questions = [*asked, *[""] * (len(found) - len(asked))]
    return [Case(*pair) for pair in zip(questions, found, strict=True)]


def prompts(folder: str, left_out: Collection[int], asked: Sequence[str]) -> list[list[int] | str]:
    """The questions, and the stretches as token ids."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    text = tokenizer.encode(LICENCE.read_text(), add_special_tokens=False).ids
    return [*asked, *(ids for ids in licence_ids(text) if len(ids) not in left_out)]


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer."""
    choice = answer["choices"][0]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


async def ask(
    session: aiohttp.ClientSession, model: str, case: Case, num_tokens: int, chat: bool
) -> dict[str, Any]:
    """One whole answer of a number of tokens."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "repetition_penalty": 1,
    }
    if chat and case.question:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": case.question}]
    else:
        path, body["prompt"] = "/v1/completions", case.expected.prompt
    async with session.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
    return answer


async def ask_all(
    url: str, model: str, asked: list[Case], at_once: int, chat: bool = False, num_tokens: int = 0
) -> list[dict[str, Any]]:
    """Answers to all cases, in order, `at_once` at a time; of as many tokens as the reference has
    if `num_tokens` is 0.
    """
    gate = asyncio.Semaphore(at_once)

    async def one(session: aiohttp.ClientSession, case: Case) -> dict[str, Any]:
        async with gate:
            count = num_tokens or len(case.expected.tokens)
            return await ask(session, model, case, count, chat)

    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        return await asyncio.gather(*(one(session, case) for case in asked))


def differences(folder: str, asked: list[Case], got: list[dict[str, Any]]) -> list[str]:
    """The differences from the reference, for people; those after a near-tie are printed."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    faults = []
    for case, answer in zip(asked, got, strict=True):
        text, tokens = text_of(answer), case.expected.tokens
        expected = tokenizer.decode(tokens, skip_special_tokens=True)
        whole = answer["usage"]["completion_tokens"] == len(tokens)
        if whole and text == expected:
            continue
        ties = [place for place, gap in enumerate(case.expected.gaps) if gap < NEAR_TIE]
        line = f"{len(case.expected.prompt)} prompt tokens, near-ties at {ties}: {text!r}"
        sure = tokenizer.decode(tokens[: ties[0]], skip_special_tokens=True) if ties else expected
        if whole and ties and text.startswith(sure.rstrip(_HALF_A_CHARACTER)):
            print(line)
        else:
            faults.append(f"{line} is not {expected!r}")
    return faults
