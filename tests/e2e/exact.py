"""Asking a daemon for greedy answers, and holding them against the reference."""

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from tokenizers import Tokenizer

from tests.e2e.prompts import LICENCE, QUESTIONS, licence_ids
from tests.e2e.reference import Answer, answers

NEAR_TIE = 1e-4
"""Two logits closer than this may change places between two right computations in float32."""


class Case(NamedTuple):
    """A prompt and what greedy decoding must make of it."""

    question: str  # the chat message that the prompt is, or ""
    expected: Answer


def cases(folder: str, count: int) -> list[Case]:
    """The thirty prompts with their references."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    text = tokenizer.encode(LICENCE.read_text(), add_special_tokens=False).ids
    found = answers(folder, [*QUESTIONS, *licence_ids(text)], count)
    questions = [*QUESTIONS, *[""] * (len(found) - len(QUESTIONS))]
    return [Case(*pair) for pair in zip(questions, found, strict=True)]


async def ask(session: aiohttp.ClientSession, model: str, case: Case, chat: bool) -> dict[str, Any]:
    """One whole answer of as many tokens as the reference has."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": len(case.expected.tokens),
        "temperature": 0,
        "ignore_eos": True,
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
    url: str, model: str, asked: list[Case], at_once: int, chat: bool = False
) -> list[dict[str, Any]]:
    """Answers to all cases, in order, `at_once` at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(session: aiohttp.ClientSession, case: Case) -> dict[str, Any]:
        async with gate:
            return await ask(session, model, case, chat)

    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        return await asyncio.gather(*(one(session, case) for case in asked))


def differences(folder: str, asked: list[Case], got: list[dict[str, Any]]) -> list[str]:
    """What differs from the reference and is no near-tie, for people; a near-tie is printed."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    faults = []
    for case, answer in zip(asked, got, strict=True):
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        expected = tokenizer.decode(case.expected.tokens, skip_special_tokens=True)
        length = answer["usage"]["completion_tokens"]
        if text == expected and length == len(case.expected.tokens):
            continue
        line = f"{len(case.expected.prompt)} prompt tokens, gap {case.expected.gap:.1e}: {text!r}"
        if case.expected.gap < NEAR_TIE:
            print(f"near-tie: {line}")
        else:
            faults.append(f"{line} is not {expected!r}")
    return faults
